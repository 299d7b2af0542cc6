//! Programs of others.

use std::{fs, path::Path};

use farwater_api::ServiceDeployment;
use farwater_render::Program;
use farwater_testkit::tools::repository_root;
use serde_json::{Value, json};

use super::support::{Bench, Job, TOOLS, errors, open_to_all, path, read_folder, renderer, strict, values};

/// Shell scripts stand for programs that the agent's administrator has installed.
fn shell(name: &str, script: &str, kind: &str) -> String {
    json!({"plugins": [{"name": name, "command": ["/bin/sh", "-c", script, "sh", "{parameters}", "{folder}", "{scratch}"], "type": kind}]}).to_string()
}

fn plugged(name: &str) -> Value {
    json!([{"type": "Plugin", "plugin": name}])
}

/// `examples/jsonnet` unchanged, except for the path of the program.
#[tokio::test]
async fn jsonnet_is_a_plugin() {
    let example = repository_root().unwrap().join("examples/jsonnet");
    let read = |name: &str| fs::read_to_string(example.join(name)).unwrap();
    let (_folder, jsonnet) = open_to_all(&TOOLS.jsonnet());
    let configuration = read("plugins.yaml").replace("/plugins/jsonnet", jsonnet.to_str().unwrap());
    let bench = Bench::with(Program::new(vec![renderer()]), &configuration);
    let service: ServiceDeployment = serde_saphyr::from_str(&read("service.yaml")).unwrap();
    let job = Job {
        path: path(&service.spec.path),
        renderers: service.spec.renderers.clone(),
        ..Job::new(read_folder(&example))
    };
    let handed = json!({"configuration": service.spec.configuration, "service": {"name": "web"}});
    let job = job.parameters(handed);
    let made = values(bench.render(&job).await);
    assert_eq!(made.len(), 2);
    assert_eq!(
        (&made[0]["kind"], &made[0]["metadata"]["name"]),
        (&json!("Deployment"), &json!("web"))
    );
    assert_eq!(made[0]["spec"]["replicas"], 2);
    let image = &made[0]["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(*image, json!(service.spec.configuration["image"]));
    assert_eq!(
        (&made[1]["kind"], &made[1]["metadata"]["name"]),
        (&json!("Service"), &json!("web"))
    );

    let unknown = job
        .clone()
        .parameters(json!({"configuration": {}, "service": {"name": "web"}}));
    let said = errors(&bench.render(&unknown).await);
    assert!(
        said.contains("plugin jsonnet failed with exit code 1") && said.contains("Field does not exist: replicas"),
        "{said}"
    );
}

/// The page shows each file of the example completely.
#[test]
fn the_page_shows_the_worked_example() {
    let root = repository_root().unwrap();
    let page = fs::read_to_string(root.join("docs/renderers.md")).unwrap();
    for name in ["plugins.yaml", "mounts.yaml", "service.yaml", "apps/web/main.jsonnet"] {
        let file = fs::read_to_string(root.join("examples/jsonnet").join(name)).unwrap();
        assert!(
            page.contains(&file),
            "docs/renderers.md has not what examples/jsonnet/{name} has"
        );
    }
}

#[tokio::test]
async fn a_plugin_gets_its_folder_and_its_parameters_and_nothing_else() {
    let script = "printf 'apiVersion: v1\\nkind: ConfigMap\\nmetadata: {name: seen}\\ndata:\\n'; echo \"  here: '$(ls | tr '\\n' ' ')'\"; echo \"  folder: '$(test \"$(pwd -P)\" = \"$2\" && echo same)'\"; echo \"  file: '$(cat \"$1\")'\"; echo \"  stdin: '$(cat)'\"; echo \"  at: '$2'\"; echo \"  env: '$(env | cut -d= -f1 | grep -v -e ^PWD$ -e ^_$ -e ^SHLVL$ -e ^OLDPWD$ | sort | tr '\\n' ' ')'\"; echo written > \"$3/x\" && echo \"  scratch: '$(cat \"$3/x\")'\"";
    let bench = Bench::with(strict(), &shell("look", script, "Exec"));
    let job =
        Job::of([("app/x.txt", ""), ("app/y.txt", ""), ("z.txt", "")]).parameters(json!({"configuration": {"a": 1}}));
    let job = job.renderers(json!([{"path": "app", "type": "Plugin", "plugin": "look"}]));
    let mut data = values(bench.render(&job).await).remove(0)["data"].take();
    let at = data.as_object_mut().unwrap().remove("at").unwrap();
    let parameters = "{\"configuration\":{\"a\":1}}";
    let expected = json!({"here": "x.txt y.txt ", "folder": "same", "file": parameters, "stdin": parameters, "env": "HOME TMPDIR ", "scratch": "written"});
    assert_eq!(data, expected);
    // Its working folder is removed.
    assert!(
        at.as_str()
            .is_some_and(|at| at.ends_with("input/app") && !Path::new(at).exists()),
        "{at}"
    );
    assert_eq!(std::fs::read_dir(bench.folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_krm_function_gets_the_folders_manifests_and_gives_them_back() {
    let script = "sed -e 's/\"name\":\"before\"/\"name\":\"after\"/'";
    let bench = Bench::with(strict(), &shell("f", script, "KRMFunction"));
    let job = Job::of([(
        "a.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: before}\ndata: {a: '1'}\n",
    )]);
    let made = values(bench.render(&job.clone().renderers(plugged("f"))).await);
    assert_eq!(
        (&made[0]["metadata"]["name"], &made[0]["data"]["a"]),
        (&json!("after"), &json!("1"))
    );

    let says_no = "echo 'kind: ResourceList'; echo 'results: [{severity: error, message: replicas must be odd}]'";
    let bench = Bench::with(strict(), &shell("f", says_no, "KRMFunction"));
    let said = errors(&bench.render(&job.clone().renderers(plugged("f"))).await);
    assert!(
        said.contains("plugin f reports an error: replicas must be odd"),
        "{said}"
    );
    let mut unread = job.renderers(plugged("f"));
    unread.files.insert("b.yaml".to_owned(), b"a: [".to_vec());
    assert!(errors(&bench.render(&unread).await).contains("needs the manifests of its folder"));
}

#[tokio::test]
async fn a_plugin_that_is_not_known_or_fails_is_named() {
    let bench = Bench::with(strict(), &shell("fails", "echo why it failed >&2; exit 7", "Exec"));
    let job = |name: &str| Job::of([("a", "")]).renderers(plugged(name));
    let said = errors(&bench.render(&job("other")).await);
    assert!(
        said.contains("the agent knows no plugin \"other\", but fails; plugins are named in its configuration"),
        "{said}"
    );
    let said = errors(&bench.render(&job("fails")).await);
    assert!(
        said.contains("plugin fails failed with exit code 7: why it failed"),
        "{said}"
    );
    let missing = json!({"plugins": [{"name": "none", "command": ["/nowhere/to/be/found"]}]}).to_string();
    let said = errors(&Bench::with(strict(), &missing).render(&job("none")).await);
    assert!(
        said.contains("plugin none could not be started") && said.contains("/nowhere/to/be/found"),
        "{said}"
    );
    let garbage = Bench::with(strict(), &shell("garbage", "head -c 1000 /dev/urandom", "Exec"));
    errors(&garbage.render(&job("garbage")).await);
    let nothing = Bench::with(strict(), &shell("nothing", "true", "Exec"));
    assert_eq!(values(nothing.render(&job("nothing")).await), Vec::<Value>::new());
}
