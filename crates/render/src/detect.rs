//! Detects the renderer of a folder.

use farwater_api::renderer::RendererType;
use farwater_bundle::{Archive, RelPath, manifests::KUSTOMIZATIONS};

const CHART: &str = "Chart.yaml";

/// By exact file names at the root of a real folder. Never returns `Auto` or `Plugin`.
pub fn detect(archive: &Archive, folder: &RelPath) -> RendererType {
    let has = |name: &&str| {
        folder
            .join_name(name.as_bytes())
            .is_ok_and(|file| archive.file(&file).is_ok())
    };
    if has(&CHART) {
        RendererType::Helm
    } else if KUSTOMIZATIONS.iter().any(has) {
        RendererType::Kustomize
    } else {
        RendererType::Raw
    }
}

#[cfg(test)]
mod tests {
    use farwater_bundle::{Limits, MemoryTree, archive, closure};

    use super::*;

    fn check(files: &[(&str, &str)], expected: RendererType) {
        let mut tree = MemoryTree::default();
        let root = tree.add_files(files.iter().copied());
        let limits = Limits::default();
        let closure = closure(&tree, &root, &RelPath::root(), &limits).unwrap();
        let archive = Archive::read(archive::pack(&tree, &closure, &limits).unwrap(), &limits).unwrap();
        assert_eq!(detect(&archive, &RelPath::root()), expected, "{files:?}");
    }

    #[test]
    fn exact_files_at_the_root_decide() {
        check(&[("a.yaml", "")], RendererType::Raw);
        check(&[("Chart.yaml", "")], RendererType::Helm);
        check(
            &[("chart.yaml", ""), ("kustomization.json", ""), ("x/Chart.yaml", "")],
            RendererType::Raw,
        );
        for name in ["kustomization.yaml", "kustomization.yml", "Kustomization"] {
            check(&[(name, "")], RendererType::Kustomize);
        }
        check(&[("Chart.yaml", ""), ("kustomization.yaml", "")], RendererType::Helm);
        check(
            &[("Chart.yaml", "-> c/Chart.yaml"), ("c/Chart.yaml", "")],
            RendererType::Helm,
        );
        check(&[("Chart.yaml/x", "")], RendererType::Raw);
    }
}
