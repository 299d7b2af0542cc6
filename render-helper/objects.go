package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/yaml"
)

// The documents of a text as Helm takes it apart and prints it, in order. Each ends with a newline more than it has: that is seen at the end
// of a block scalar.
func documents(text string) []string {
	split := releaseutil.SplitManifests(text)
	keys := slices.Collect(maps.Keys(split))
	sort.Sort(releaseutil.BySplitManifestsOrder(keys))
	documents := make([]string, 0, len(keys))
	for _, key := range keys {
		documents = append(documents, split[key]+"\n")
	}
	return documents
}

// The objects of a text, read as kubectl and Helm read them: with the YAML of sigs.k8s.io/yaml, where of a key that is given twice the
// last one counts.
func (c *call) read(source, text string) ([]object, error) {
	var objects []object
	for _, document := range documents(text) {
		json, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			lenient, again := yaml.YAMLToJSON([]byte(document))
			if again != nil {
				return nil, fmt.Errorf("%s: %w", source, again)
			}
			c.warn("%s: %s; the last one counts", source, strings.TrimPrefix(err.Error(), "yaml: "))
			json = lenient
		}
		if json = bytes.TrimSpace(json); bytes.Equal(json, []byte("null")) {
			continue
		}
		made := object{source: source, json: json}
		if c.keepsText {
			made.text = document
		}
		objects = append(objects, made)
		if len(objects) > maxObjects {
			return nil, &failure{reasonLimit, fmt.Sprintf("over %d objects", maxObjects)}
		}
	}
	return objects, nil
}

// As many as one service may have.
const maxObjects = 10_000
