package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/types"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/kustomize/kyaml/yaml/merge2"
	"sigs.k8s.io/yaml"
)

// Of the component that a kustomization's charts become. Kustomize runs components after generators and before transformers, where
// it would inflate charts itself.
const inflatedFolder = ".farwater-charts"

// Puts the objects of a kustomization's charts in the place of helmCharts.
func (p *preparation) inflate(file, at, namespace string, kustomization *types.Kustomization) error {
	if len(kustomization.HelmCharts) == 0 {
		return nil
	}
	globals := types.HelmGlobals{}
	if kustomization.HelmGlobals != nil {
		globals = *kustomization.HelmGlobals
	}
	factory := resmap.NewFactory(provider.NewDefaultDepProvider().GetResourceFactory())
	all := ""
	for i := range kustomization.HelmCharts {
		if kustomization.HelmCharts[i].Namespace == "" {
			p.inflated[at] = namespace
		}
		text, err := p.inflateChart(at, namespace, globals, &kustomization.HelmCharts[i], factory)
		if err != nil {
			return fmt.Errorf("%s: helmCharts: %s: %w", file, kustomization.HelmCharts[i].Name, err)
		}
		if text != "" {
			all += "---\n" + text
		}
	}
	if all != "" {
		folder := path.Join(at, inflatedFolder)
		p.files[path.Join(folder, "kustomization.yaml")] = []byte("kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\nresources: [objects.yaml]\n")
		p.files[path.Join(folder, "objects.yaml")] = []byte(all)
	}
	return p.rewrite(file, func(fields map[string]any) error {
		for _, field := range []string{"helmCharts", "helmGlobals", "helmChartInflationGenerator"} {
			delete(fields, field)
		}
		if all != "" {
			components, _ := fields["components"].([]any)
			fields["components"] = append([]any{inflatedFolder}, components...)
		}
		return nil
	})
}

func (p *preparation) inflateChart(at, namespace string, globals types.HelmGlobals, wanted *types.HelmChart, factory *resmap.Factory) (string, error) {
	if wanted.ReleaseName == "" {
		return "", refused("it has no releaseName: each render would make another one up")
	}
	home := globals.ChartHome
	if home == "" {
		home = types.HelmDefaultHome
	}
	folder, inside := resolve(at, home)
	if wanted.Version != "" && wanted.Repo != "" {
		folder = path.Join(folder, wanted.Name+"-"+wanted.Version)
	}
	folder = path.Join(folder, wanted.Name)
	if !inside || !p.files.isFolder(folder) {
		return "", refused("there is no chart at %s: rendering has no network; keep the chart there (helm pull --untar)", folder)
	}
	// To kustomize `yes` is a text, and to Helm it is true.
	inner := call{files: maps.Clone(p.call.files), limits: p.call.limits, wire: p.call.wire, keepsText: true}
	release := releaseInfo{Name: wanted.ReleaseName, Namespace: firstOf(wanted.Namespace, namespace, p.asked.Namespace, "default")}
	asked := helmRequest{
		Chart:        folder,
		Release:      release,
		Capabilities: p.asked.Capabilities,
		SkipCRDs:     !wanted.IncludeCRDs,
		SkipTests:    wanted.SkipTests,
		SkipHooks:    wanted.SkipHooks,
	}
	if asked.Capabilities.KubeVersion == "" {
		asked.Capabilities.KubeVersion = wanted.KubeVersion
	}
	if len(asked.Capabilities.APIVersions) == 0 {
		asked.Capabilities.APIVersions = wanted.ApiVersions
	}
	values, err := p.chartValues(at, folder, wanted)
	if err != nil {
		return "", err
	}
	merged := path.Join(folder, ".farwater-values.yaml")
	inner.files[merged] = values
	asked.ValuesFiles = append(asked.ValuesFiles, merged)
	for _, file := range wanted.AdditionalValuesFiles {
		resolved, inside := resolve(at, file)
		if !inside {
			return "", fmt.Errorf("values file %s leads out of the repository", file)
		}
		asked.ValuesFiles = append(asked.ValuesFiles, resolved)
	}
	objects, err := libraries{}.helm(&asked, &inner)
	p.call.warnings = append(p.call.warnings, inner.warnings...)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, object := range objects {
		fmt.Fprintf(&text, "---\n%s\n", object.text)
	}
	made, err := factory.NewResMapFromBytes([]byte(text.String()))
	if err != nil {
		return "", err
	}
	for _, resource := range made.Resources() {
		// Their namespace is the release's, not the kustomization's.
		if err := resource.PipeE(kyaml.SetAnnotation(konfig.HelmGeneratedAnnotation, "true")); err != nil {
			return "", err
		}
	}
	if made.Size() == 0 {
		return "", nil
	}
	marked, err := made.AsYaml()
	return string(marked), err
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// The file that kustomize would give to Helm first: a values file with the inline values merged in.
func (p *preparation) chartValues(at, folder string, wanted *types.HelmChart) ([]byte, error) {
	file := path.Join(folder, "values.yaml")
	if wanted.ValuesFile != "" {
		resolved, inside := resolve(at, wanted.ValuesFile)
		if _, there := p.files[resolved]; !inside || !there {
			return nil, fmt.Errorf("values file %s is not among the service's files", wanted.ValuesFile)
		}
		file = resolved
	}
	content := p.files[file]
	if len(wanted.ValuesInline) == 0 {
		return content, nil
	}
	inline, err := json.Marshal(wanted.ValuesInline)
	if err != nil {
		return nil, err
	}
	if wanted.ValuesMerge == "replace" {
		return inline, nil
	}
	of, over := content, inline
	switch wanted.ValuesMerge {
	case "", "override":
	case "merge":
		of, over = inline, content
	default:
		return nil, fmt.Errorf("valuesMerge is %q, and must be merge, override or replace", wanted.ValuesMerge)
	}
	return mergeYAML(of, over)
}

// What `over` says wins.
func mergeYAML(of, over []byte) ([]byte, error) {
	parse := func(text []byte) (*kyaml.RNode, error) {
		if len(strings.TrimSpace(string(text))) == 0 {
			text = []byte("{}")
		}
		return kyaml.Parse(string(text))
	}
	below, err := parse(of)
	if err != nil {
		return nil, err
	}
	above, err := parse(over)
	if err != nil {
		return nil, err
	}
	merged, err := merge2.Merge(above, below, kyaml.MergeOptions{})
	if err != nil {
		return nil, err
	}
	fields, err := merged.Map()
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(fields)
}
