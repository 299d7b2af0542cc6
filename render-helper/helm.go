package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/ignore"
	release "helm.sh/helm/v4/pkg/release/v1"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
)

type helmRequest struct {
	// Folder of the chart, or its .tgz file.
	Chart   string      `json:"chart"`
	Release releaseInfo `json:"release"`
	// Over the chart's own values, in their order; the inline ones come last.
	ValuesFiles         []string        `json:"valuesFiles,omitempty"`
	IgnoreMissingValues bool            `json:"ignoreMissingValuesFiles,omitempty"`
	Values              json.RawMessage `json:"values,omitempty"`
	Capabilities        capabilities    `json:"capabilities"`
	SkipCRDs            bool            `json:"skipCrds,omitempty"`
	SkipTests           bool            `json:"skipTests,omitempty"`
	SkipHooks           bool            `json:"skipHooks,omitempty"`
	SkipSchema          bool            `json:"skipSchemaValidation,omitempty"`
	Lookup              bool            `json:"lookup,omitempty"`
	PostRenderers       []postRenderer  `json:"postRenderers,omitempty"`
}

type releaseInfo struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	IsUpgrade bool   `json:"isUpgrade,omitempty"`
}

type capabilities struct {
	// Empty: of the Kubernetes that Helm was built with.
	KubeVersion string   `json:"kubeVersion,omitempty"`
	APIVersions []string `json:"apiVersions,omitempty"`
	// The versions are all that the cluster has; else they come on top of those that Helm knows by itself.
	Complete bool `json:"complete,omitempty"`
}

// Decompressed, with its dependencies; a bundle has no more.
const maxChartBytes = 64 << 20

// As many as helm dependency build would go down.
const maxDependencies = 16

func init() { archive.MaxDecompressedChartSize = maxChartBytes }

// As helm template prints it with --include-crds: definitions, objects in the order of installation, hooks.
func (libraries) helm(asked *helmRequest, call *call) ([]object, error) {
	if err := chartutil.ValidateReleaseName(asked.Release.Name); err != nil {
		return nil, fmt.Errorf("release name %q: %w", asked.Release.Name, err)
	}
	loaded, err := call.loadChart(asked.Chart, 0)
	if err != nil {
		return nil, err
	}
	values, err := call.mergeValues(asked)
	if err != nil {
		return nil, err
	}
	return call.renderChart(loaded, values, asked)
}

func (c *call) renderChart(loaded *chart.Chart, values map[string]any, asked *helmRequest) ([]object, error) {
	if kind := loaded.Metadata.Type; kind != "" && kind != "application" {
		return nil, fmt.Errorf("chart %s is of type %s, and can't be installed by itself", loaded.Name(), kind)
	}
	if loaded.Metadata.Deprecated {
		c.warn("chart %s is deprecated", loaded.Name())
	}
	if err := chartutil.ProcessDependencies(loaded, values); err != nil {
		return nil, fmt.Errorf("dependencies of chart %s: %w", loaded.Name(), err)
	}
	capabilities, err := asked.Capabilities.resolve()
	if err != nil {
		return nil, err
	}
	if wanted := loaded.Metadata.KubeVersion; wanted != "" && !chartutil.IsCompatibleRange(wanted, capabilities.KubeVersion.String()) {
		return nil, fmt.Errorf("chart %s requires Kubernetes %s, and the cluster has %s", loaded.Name(), wanted, capabilities.KubeVersion.Version)
	}
	if !asked.SkipSchema {
		if err := checkSchemas(loaded); err != nil {
			return nil, err
		}
	}
	options := common.ReleaseOptions{
		Name:      asked.Release.Name,
		Namespace: asked.Release.Namespace,
		Revision:  1,
		IsInstall: !asked.Release.IsUpgrade,
		IsUpgrade: asked.Release.IsUpgrade,
	}
	scope, err := util.ToRenderValuesWithSchemaValidation(loaded, values, options, capabilities, true)
	if err != nil {
		return nil, err
	}
	if at := findEncrypted("", scope["Values"]); at != "" {
		return nil, refused("value %s of chart %s is still encrypted: the file that it comes from did not open here (sops updatekeys gives it this cluster's key)", at, loaded.Name())
	}
	if !asked.SkipSchema {
		if err := checkValues(loaded, scope); err != nil {
			return nil, err
		}
	}
	engine := engine.Engine{CustomTemplateFuncs: c.functions(asked.Lookup)}
	rendered, err := engine.Render(loaded, scope)
	if err != nil {
		return nil, err
	}
	for name := range rendered {
		if strings.HasSuffix(name, "NOTES.txt") {
			delete(rendered, name)
		}
	}
	if err := c.checkOutput(total(rendered)); err != nil {
		return nil, err
	}
	for i := range asked.PostRenderers {
		if rendered, err = c.postRender(&asked.PostRenderers[i], rendered, asked.Chart); err != nil {
			return nil, fmt.Errorf("post-renderer %d: %w", i+1, err)
		}
	}
	return c.collect(loaded, rendered, asked)
}

// The functions that Helm itself can't answer without a cluster or a network.
func (c *call) functions(lookupAllowed bool) template.FuncMap {
	functions := template.FuncMap{
		"getHostByName": func(name string) (string, error) {
			return "", refused("getHostByName %q: rendering has no network; give the address as a value", name)
		},
	}
	if lookupAllowed {
		functions["lookup"] = func(apiVersion, kind, namespace, name string) (map[string]any, error) {
			return c.ask(lookup{apiVersion, kind, namespace, name})
		}
	}
	return functions
}

func (c *call) collect(loaded *chart.Chart, rendered map[string]string, asked *helmRequest) ([]object, error) {
	hooks, manifests, err := releaseutil.SortManifests(rendered, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	var objects []object
	add := func(source, text string) error {
		read, err := c.read(source, text)
		objects = append(objects, read...)
		return err
	}
	if !asked.SkipCRDs {
		for _, definition := range loaded.CRDObjects() {
			if err := add(definition.Filename, string(definition.File.Data)); err != nil {
				return nil, err
			}
		}
	}
	for _, manifest := range manifests {
		if err := add(manifest.Name, manifest.Content); err != nil {
			return nil, err
		}
	}
	for _, hook := range hooks {
		if asked.SkipHooks || (asked.SkipTests && slices.Contains(hook.Events, release.HookTest)) {
			continue
		}
		if err := add(hook.Path, hook.Manifest); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

func total(rendered map[string]string) int {
	total := 0
	for _, text := range rendered {
		total += len(text)
	}
	return total
}

// As Helm does for a real cluster (complete), or for helm template with --api-versions.
func (c capabilities) resolve() (*common.Capabilities, error) {
	resolved := common.DefaultCapabilities.Copy()
	if c.KubeVersion != "" {
		version, err := common.ParseKubeVersion(c.KubeVersion)
		if err != nil {
			return nil, fmt.Errorf("Kubernetes version %q: %w", c.KubeVersion, err)
		}
		resolved.KubeVersion = *version
	}
	if c.Complete {
		resolved.APIVersions = c.APIVersions
	} else {
		resolved.APIVersions = append(slices.Clone(resolved.APIVersions), c.APIVersions...)
	}
	return resolved, nil
}

func (c *call) mergeValues(asked *helmRequest) (map[string]any, error) {
	values := map[string]any{}
	add := func(name string, text []byte) error {
		read, err := loader.LoadValues(bytes.NewReader(text))
		if err != nil {
			return fmt.Errorf("values of %s: %w", name, err)
		}
		values = loader.MergeMaps(values, read)
		return nil
	}
	for _, file := range asked.ValuesFiles {
		text, there := c.files[file]
		if !there {
			if asked.IgnoreMissingValues {
				continue
			}
			return nil, fmt.Errorf("values file %s is not among the service's files", file)
		}
		if err := add(file, text); err != nil {
			return nil, err
		}
	}
	if len(asked.Values) > 0 {
		if err := add("the service", asked.Values); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// How each value begins that SOPS has encrypted.
const encryptedValue = "ENC[AES256_GCM,data:"

// Where below `at` a value is that SOPS has encrypted, as `a.b`; empty if none is. A template would count it as 0, compare it, or hash it.
func findEncrypted(at string, value any) string {
	switch value := value.(type) {
	case string:
		if strings.HasPrefix(value, encryptedValue) {
			return at
		}
	case common.Values:
		return findEncrypted(at, map[string]any(value))
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if found := findEncrypted(below(at, name), value[name]); found != "" {
				return found
			}
		}
	case []any:
		for i, inner := range value {
			if found := findEncrypted(below(at, strconv.Itoa(i)), inner); found != "" {
				return found
			}
		}
	}
	return ""
}

func below(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// A chart and the dependencies that it has in charts/, or that are charts of the same files (file://).
func (c *call) loadChart(at string, depth int) (*chart.Chart, error) {
	if depth > maxDependencies {
		return nil, fmt.Errorf("chart %s: dependencies are nested over %d deep", at, maxDependencies)
	}
	var loaded *chart.Chart
	var err error
	if packed, there := c.files[at]; there {
		loaded, err = loader.LoadArchive(bytes.NewReader(packed))
	} else {
		var buffered []*archive.BufferedFile
		if buffered, err = c.chartFiles(at); err == nil {
			loaded, err = loader.LoadFiles(buffered)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", at, err)
	}
	return loaded, c.addDependencies(loaded, at, depth)
}

// What Helm reads of a chart's folder: all but what .helmignore names.
func (c *call) chartFiles(at string) ([]*archive.BufferedFile, error) {
	if _, there := c.files[path.Join(at, chartutil.ChartfileName)]; !there {
		return nil, errors.New("there is no Chart.yaml")
	}
	rules := ignore.Empty()
	if text, there := c.files[path.Join(at, ignore.HelmIgnore)]; there {
		parsed, err := ignore.Parse(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ignore.HelmIgnore, err)
		}
		rules = parsed
	}
	rules.AddDefaults()
	skipped := map[string]bool{}
	var buffered []*archive.BufferedFile
	left := int64(maxChartBytes)
	for _, name := range c.files.below(at) {
		data := c.files[path.Join(at, name)]
		if ignored(rules, skipped, path.Dir(name)) || rules.Ignore(name, fileInfo{path.Base(name), len(data), false}) {
			continue
		}
		if left -= int64(len(data)); left < 0 {
			return nil, fmt.Errorf("its files have over %d bytes", maxChartBytes)
		}
		buffered = append(buffered, &archive.BufferedFile{Name: name, Data: bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))})
	}
	return buffered, nil
}

// Whether a folder of a chart, or one above it, is left out.
func ignored(rules *ignore.Rules, known map[string]bool, folder string) bool {
	if folder == "." {
		return false
	}
	answer, there := known[folder]
	if !there {
		answer = ignored(rules, known, path.Dir(folder)) || rules.Ignore(folder, fileInfo{path.Base(folder), 0, true})
		known[folder] = answer
	}
	return answer
}

func (c *call) addDependencies(loaded *chart.Chart, at string, depth int) error {
	var missing []string
	for _, wanted := range loaded.Metadata.Dependencies {
		if slices.ContainsFunc(loaded.Dependencies(), func(have *chart.Chart) bool { return have.Name() == wanted.Name }) {
			continue
		}
		local, isLocal := strings.CutPrefix(wanted.Repository, "file://")
		folder, inside := resolve(at, local)
		if isLocal && inside && c.files.isFolder(folder) {
			dependency, err := c.loadChart(folder, depth+1)
			if err != nil {
				return fmt.Errorf("dependency %s of chart %s: %w", wanted.Name, loaded.Name(), err)
			}
			loaded.AddDependency(dependency)
			continue
		}
		missing = append(missing, fmt.Sprintf("%s %s of %q", wanted.Name, wanted.Version, wanted.Repository))
	}
	if len(missing) > 0 {
		return fmt.Errorf("chart %s has no %s in its charts folder: rendering has no network; run helm dependency build and keep charts/ with the chart",
			loaded.Name(), strings.Join(missing, ", no "))
	}
	return nil
}
