package main

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/builtins"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	"sigs.k8s.io/yaml"
)

type kustomizeRequest struct {
	// Folder of the kustomization.
	Path string `json:"path"`
	// Files outside of a kustomization's own folder may be read, as with `--load-restrictor LoadRestrictionsNone`.
	LoadOutside bool `json:"loadOutside,omitempty"`
	// What comes on top of the kustomization's own fields, as `kustomize edit` would write it.
	NamePrefix string        `json:"namePrefix,omitempty"`
	NameSuffix string        `json:"nameSuffix,omitempty"`
	Images     []types.Image `json:"images,omitempty"`
	Components []string      `json:"components,omitempty"`
	// Of the charts that it inflates.
	Capabilities capabilities `json:"capabilities"`
	// Of charts whose namespace is said nowhere.
	Namespace string `json:"namespace,omitempty"`
}

// As `kustomize build --enable-helm` prints it.
func (libraries) kustomize(asked *kustomizeRequest, call *call) ([]object, error) {
	built, err := call.build(asked)
	if err != nil {
		return nil, err
	}
	return toObjects(built.Resources(), func(*resource.Resource) string { return asked.Path })
}

func toObjects(resources []*resource.Resource, source func(*resource.Resource) string) ([]object, error) {
	if len(resources) > maxObjects {
		return nil, &failure{reasonLimit, fmt.Sprintf("over %d objects", maxObjects)}
	}
	objects := make([]object, 0, len(resources))
	for _, resource := range resources {
		text, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		json, err := yaml.YAMLToJSON(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resource.CurId(), err)
		}
		objects = append(objects, object{source: source(resource), json: json})
	}
	return objects, nil
}

func (c *call) build(asked *kustomizeRequest) (resmap.ResMap, error) {
	prepared := preparation{call: c, asked: asked, files: maps.Clone(c.files), seen: map[[2]string]bool{}, inflated: map[string]string{}}
	if err := prepared.edit(asked); err != nil {
		return nil, err
	}
	if err := prepared.localize(); err != nil {
		return nil, err
	}
	if err := prepared.folder(asked.Path, "", 0); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	// What the command does unless sortOptions say otherwise.
	options.Reorder = krusty.ReorderOptionUnspecified
	if asked.LoadOutside {
		options.LoadRestrictions = types.LoadRestrictionsNone
	}
	built, err := krusty.MakeKustomizer(options).Run(newFolders(prepared.files), path.Join("/", asked.Path))
	if err != nil {
		if strings.Contains(err.Error(), "must specify --enable-helm") {
			return nil, refused("%s: a generator of kind HelmChartInflationGenerator is not read; write the chart under helmCharts", asked.Path)
		}
		return nil, err
	}
	return built, nil
}

// What kustomize would fetch or start programs for is done, or refused, before it runs.
type preparation struct {
	call  *call
	asked *kustomizeRequest
	files tree
	// Folder and the namespace that its charts get.
	seen map[[2]string]bool
	// Folders whose charts were inflated into a namespace that another kustomization decides about.
	inflated map[string]string
}

// As deep as kustomizations name each other; a circle is kustomize's own to report.
const maxKustomizationDepth = 64

func (p *preparation) kustomizationFile(folder string) (string, bool) {
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		file := path.Join(folder, name)
		if _, there := p.files[file]; there {
			return file, true
		}
	}
	return "", false
}

func (p *preparation) folder(at, namespace string, depth int) error {
	file, there := p.kustomizationFile(at)
	if !there || depth > maxKustomizationDepth {
		return nil
	}
	var kustomization types.Kustomization
	if err := kustomization.Unmarshal(p.files[file]); err != nil {
		// Kustomize says it better.
		return nil
	}
	if kustomization.Namespace != "" {
		namespace = kustomization.Namespace
	}
	kustomization.FixKustomization()
	if p.seen[[2]string{at, namespace}] {
		return nil
	}
	p.seen[[2]string{at, namespace}] = true
	if before, again := p.inflated[at]; again && before != namespace {
		return fmt.Errorf("%s: its charts are used in the namespaces %q and %q; give them a namespace under helmCharts", file, before, namespace)
	}
	if err := p.checkLocal(file, at, &kustomization); err != nil {
		return err
	}
	for _, reference := range slices.Concat(kustomization.Resources, kustomization.Components, kustomization.Generators, kustomization.Transformers, kustomization.Validators) {
		if folder, inside := resolve(at, reference); inside && !strings.HasPrefix(reference, "/") {
			if err := p.folder(folder, namespace, depth+1); err != nil {
				return err
			}
		}
	}
	return p.inflate(file, at, namespace, &kustomization)
}

// Every path of a kustomization that could be an address.
func (p *preparation) checkLocal(file, at string, kustomization *types.Kustomization) error {
	references := slices.Concat(kustomization.Resources, kustomization.Components, kustomization.Crds, kustomization.Configurations,
		kustomization.Generators, kustomization.Transformers, kustomization.Validators)
	for _, patch := range slices.Concat(kustomization.Patches, kustomization.PatchesJson6902) {
		references = append(references, patch.Path)
	}
	for _, patch := range kustomization.PatchesStrategicMerge {
		references = append(references, string(patch))
	}
	for _, replacement := range kustomization.Replacements {
		references = append(references, replacement.Path)
	}
	pairs := func(sources types.KvPairSources) {
		references = append(references, sources.EnvSources...)
		for _, source := range sources.FileSources {
			_, file, named := strings.Cut(source, "=")
			if !named {
				file = source
			}
			references = append(references, file)
		}
	}
	for _, generator := range kustomization.ConfigMapGenerator {
		pairs(generator.KvPairSources)
	}
	for _, generator := range kustomization.SecretGenerator {
		pairs(generator.KvPairSources)
	}
	references = append(references, kustomization.OpenAPI["path"])
	for _, reference := range references {
		// What is written in place has lines, or a colon and a space.
		if strings.ContainsAny(reference, "\n\r") || strings.Contains(reference, ": ") {
			continue
		}
		target, inside := resolve(at, reference)
		_, isFile := p.files[target]
		if looksRemote(reference) && !(inside && (isFile || p.files.isFolder(target))) {
			return refused("%s names %s, which is not in the repository: rendering has no network; copy it into the repository (kustomize localize does that) and name the copy",
				file, reference)
		}
	}
	return nil
}

// Whether kustomize would fetch this, were it not among the files. As the hub decides it for bundles.
func looksRemote(reference string) bool {
	if strings.HasPrefix(reference, "/") || strings.HasPrefix(reference, ".") {
		return false
	}
	for _, beginning := range []string{"github.com/", "gitlab.com/", "bitbucket.org/", "git::", "gh:"} {
		if strings.HasPrefix(reference, beginning) {
			return true
		}
	}
	user, _, hasColon := strings.Cut(reference, ":")
	return strings.Contains(reference, "://") || strings.Contains(reference, "?ref=") || strings.Contains(reference, "?version=") ||
		strings.Contains(reference, "/_git/") || (hasColon && strings.Contains(user, "@") && !strings.Contains(user, "/"))
}

// Writes the request's own fields into the kustomization.
func (p *preparation) edit(asked *kustomizeRequest) error {
	if asked.NamePrefix == "" && asked.NameSuffix == "" && len(asked.Images) == 0 && len(asked.Components) == 0 {
		return nil
	}
	file, there := p.kustomizationFile(asked.Path)
	if !there {
		return nil
	}
	return p.rewrite(file, func(fields map[string]any) error {
		if asked.NamePrefix != "" {
			fields["namePrefix"] = asked.NamePrefix
		}
		if asked.NameSuffix != "" {
			fields["nameSuffix"] = asked.NameSuffix
		}
		for _, component := range asked.Components {
			list, _ := fields["components"].([]any)
			fields["components"] = append(list, component)
		}
		for _, image := range asked.Images {
			list, _ := fields["images"].([]any)
			list = slices.DeleteFunc(slices.Clone(list), func(have any) bool {
				entry, _ := have.(map[string]any)
				return entry["name"] == image.Name
			})
			fields["images"] = append(list, image)
		}
		return nil
	})
}

// Has kustomizations name remote bases by where they lie among the files.
func (p *preparation) localize() error {
	if len(p.call.bases) == 0 {
		return nil
	}
	copies := tree{}
	for file, content := range p.files {
		if !slices.Contains(konfig.RecognizedKustomizationFileNames(), path.Base(file)) {
			continue
		}
		fields := map[string]any{}
		if err := yaml.Unmarshal(content, &fields); err != nil {
			// Kustomize says it better.
			continue
		}
		changed := false
		for _, field := range []string{"resources", "bases", "components"} {
			list, _ := fields[field].([]any)
			for i, entry := range list {
				words, _ := entry.(string)
				place, known := p.call.bases[words]
				if !known || p.isThere(path.Dir(file), words) {
					continue
				}
				changed = true
				list[i] = relative(path.Dir(file), place)
				if content, isFile := p.files[place]; isFile {
					// Kustomize takes files of a kustomization's own folder only.
					name := ".farwater-" + path.Base(path.Dir(place)) + "-" + path.Base(place)
					list[i], copies[path.Join(path.Dir(file), name)] = name, content
				}
			}
		}
		if !changed {
			continue
		}
		text, err := yaml.Marshal(fields)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		p.files[file] = text
	}
	maps.Copy(p.files, copies)
	return nil
}

func (p *preparation) isThere(folder, reference string) bool {
	target, inside := resolve(folder, reference)
	_, isFile := p.files[target]
	return inside && (isFile || p.files.isFolder(target))
}

// From one folder to another one.
func relative(from, to string) string {
	if from == "." {
		return to
	}
	return strings.Repeat("../", strings.Count(from, "/")+1) + to
}

func (p *preparation) rewrite(file string, change func(map[string]any) error) error {
	fields := map[string]any{}
	if err := yaml.UnmarshalStrict(p.files[file], &fields); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := change(fields); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	p.files[file] = text
	return nil
}

type patchRequest struct {
	Patches []types.Patch `json:"patches"`
}

// The files are the objects, by the place that each came from. They keep their order.
func (libraries) patch(asked *patchRequest, call *call) ([]object, error) {
	if err := openapi.SetSchema(nil, nil, true); err != nil {
		return nil, err
	}
	factory := resmap.NewFactory(provider.NewDefaultDepProvider().GetResourceFactory())
	all := resmap.New()
	sources := map[*resource.Resource]string{}
	for _, source := range call.order {
		made, err := factory.NewResMapFromBytes(call.files[source])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		for _, resource := range made.Resources() {
			sources[resource] = source
		}
		if err := all.AppendAll(made); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
	}
	helpers := resmap.NewPluginHelpers(nil, nil, factory, types.DisabledPluginConfig())
	for i, patch := range asked.Patches {
		text, err := yaml.Marshal(patch)
		if err != nil {
			return nil, err
		}
		plugin := builtins.NewPatchTransformerPlugin()
		if err := plugin.Config(helpers, bytes.TrimSpace(text)); err != nil {
			return nil, fmt.Errorf("patch %d: %w", i+1, err)
		}
		if err := plugin.Transform(all); err != nil {
			return nil, fmt.Errorf("patch %d: %w", i+1, err)
		}
		all.DropEmpties()
	}
	all.RemoveBuildAnnotations()
	return toObjects(all.Resources(), func(resource *resource.Resource) string { return sources[resource] })
}
