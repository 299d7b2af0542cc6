package main

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/kio"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// What a chart's objects go through before they are taken apart into objects and hooks.
type postRenderer struct {
	Kustomize *kustomizePostRenderer `json:"kustomize,omitempty"`
}

type kustomizePostRenderer struct {
	// A folder with a kustomization that has postRenderInput among its resources; else one is made of the rest.
	Path    string        `json:"path,omitempty"`
	Patches []types.Patch `json:"patches,omitempty"`
	Images  []types.Image `json:"images,omitempty"`
}

// The name under which a kustomization finds the chart's objects.
const postRenderInput = "helm-output.yaml"

// Helm's own name, so that what is rendered is the same as after `helm template --post-renderer`.
const filenameAnnotation = "postrenderer.helm.sh/postrender-filename"

// As Helm 4 does by default: templates and hooks go as one stream, and each document remembers its file.
func (c *call) postRender(with *postRenderer, rendered map[string]string, folder string) (map[string]string, error) {
	if with.Kustomize == nil {
		return nil, errors.New("it has no kustomize")
	}
	stream, err := join(rendered)
	if err != nil {
		return nil, err
	}
	files := maps.Clone(c.files)
	at := with.Kustomize.Path
	if at == "" {
		at = unusedFolder(files, folder)
		made := types.Kustomization{Resources: []string{postRenderInput}, Patches: with.Kustomize.Patches, Images: with.Kustomize.Images}
		if files[path.Join(at, "kustomization.yaml")], err = kyaml.Marshal(made); err != nil {
			return nil, err
		}
	}
	files[path.Join(at, postRenderInput)] = []byte(stream)
	inner := call{files: files, limits: c.limits, bases: c.bases, wire: c.wire}
	built, err := inner.build(&kustomizeRequest{Path: at})
	if err != nil {
		return nil, err
	}
	output, err := built.AsYaml()
	if err != nil {
		return nil, err
	}
	if err := c.checkOutput(len(output)); err != nil {
		return nil, err
	}
	return separate(string(output))
}

// A folder beside others that no file is in.
func unusedFolder(files tree, beside string) string {
	for i := 0; ; i++ {
		folder := path.Join(path.Dir(beside), fmt.Sprintf(".farwater-%d", i))
		if !files.isFolder(folder) {
			return folder
		}
	}
}

func join(rendered map[string]string) (string, error) {
	var nodes []*kyaml.RNode
	for _, file := range slices.Sorted(maps.Keys(rendered)) {
		if strings.HasPrefix(path.Base(file), "_") {
			continue
		}
		for _, document := range documents(rendered[file]) {
			parsed, err := kio.ParseAll(document)
			if err != nil {
				return "", fmt.Errorf("%s: %w", file, err)
			}
			for _, node := range parsed {
				// Elements of a List are written apart, and an anchor may stand in another one. Decoding refuses those that would fill the memory.
				var decoded any
				if err := node.YNode().Decode(&decoded); err != nil {
					return "", fmt.Errorf("%s: %w", file, err)
				}
				if err := node.DeAnchor(); err != nil {
					return "", fmt.Errorf("%s: %w", file, err)
				}
				if err := node.PipeE(kyaml.SetAnnotation(filenameAnnotation, file)); err != nil {
					return "", fmt.Errorf("%s: %w", file, err)
				}
				nodes = append(nodes, node)
			}
		}
	}
	return kio.StringAll(nodes)
}

func separate(stream string) (map[string]string, error) {
	nodes, err := kio.ParseAll(stream)
	if err != nil {
		return nil, err
	}
	byFile := map[string][]*kyaml.RNode{}
	for i, node := range nodes {
		file := node.GetAnnotations(filenameAnnotation)[filenameAnnotation]
		if file == "" {
			file = fmt.Sprintf("generated-by-postrender-%d.yaml", i)
		}
		if err := node.PipeE(kyaml.ClearAnnotation(filenameAnnotation)); err != nil {
			return nil, err
		}
		byFile[file] = append(byFile[file], node)
	}
	files := make(map[string]string, len(byFile))
	for file, nodes := range byFile {
		if files[file], err = kio.StringAll(nodes); err != nil {
			return nil, err
		}
	}
	return files, nil
}
