package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/message"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"sigs.k8s.io/yaml"
)

// Whether the values are as the charts' schemas have them: Helm decides, and what it says of values is said without them.
func checkValues(loaded *chart.Chart, scope common.Values) error {
	values, err := scope.Table("Values")
	if err != nil {
		return err
	}
	if util.ValidateAgainstSchema(loaded, values) == nil {
		return nil
	}
	problems := explainValues(loaded, values)
	if len(problems) == 0 {
		problems = []string{loaded.Name() + ": they don't"}
	}
	return fmt.Errorf("values don't meet the specifications of the schema(s) in the following chart(s):\n%s", strings.Join(problems, "\n"))
}

// Of the chart and of each of its dependencies, as Helm goes through them.
func explainValues(loaded *chart.Chart, values map[string]any) []string {
	var problems []string
	if loaded.Schema != nil {
		if problem := explainSchema(loaded.Schema, values); problem != "" {
			problems = append(problems, loaded.Name()+":\n"+problem)
		}
	}
	for _, dependency := range loaded.Dependencies() {
		switch inner := values[dependency.Name()].(type) {
		case nil:
		case map[string]any:
			problems = append(problems, explainValues(dependency, inner)...)
		default:
			problems = append(problems, fmt.Sprintf("%s:\nits values are no map", dependency.Name()))
		}
	}
	return problems
}

// As Helm has it, which doesn't hand on what its text was made of.
func explainSchema(text []byte, values map[string]any) string {
	const name = "file:///values.schema.json"
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return "values.schema.json: " + err.Error()
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(noSchema{})
	if err := compiler.AddResource(name, schema); err != nil {
		return "values.schema.json: " + err.Error()
	}
	compiled, err := compiler.Compile(name)
	if err != nil {
		return "values.schema.json: " + err.Error()
	}
	var found *jsonschema.ValidationError
	if !errors.As(compiled.Validate(values), &found) {
		return ""
	}
	veil(found)
	_, details, _ := strings.Cut(found.Error(), "\n")
	return details
}

// What is elsewhere was refused before; a URN Helm takes for anything.
type noSchema struct{}

func (noSchema) Load(url string) (any, error) {
	if strings.HasPrefix(url, "urn:") {
		return true, nil
	}
	return nil, refused("%s: rendering has no network", url)
}

// What is wrong with a value, without it.
type veiled struct {
	keywords []string
	text     string
}

func (v veiled) KeywordPath() []string                   { return v.keywords }
func (v veiled) LocalizedString(*message.Printer) string { return v.text }

// Takes the values out of what a schema says of them; texts of the schema and names stay.
func veil(found *jsonschema.ValidationError) {
	if text := withoutValue(found.ErrorKind); text != "" {
		found.ErrorKind = veiled{found.ErrorKind.KeywordPath(), text}
	}
	for _, cause := range found.Causes {
		veil(cause)
	}
}

// Empty: there is none in it.
func withoutValue(problem jsonschema.ErrorKind) string {
	bound := func(word string, want *big.Rat) string {
		number, _ := want.Float64()
		return fmt.Sprintf("%s: want %v", word, number)
	}
	switch problem := problem.(type) {
	case *kind.Format:
		return "value is not valid " + problem.Want
	case *kind.Pattern:
		return fmt.Sprintf("value does not match pattern '%s'", problem.Want)
	case *kind.ContentEncoding:
		return fmt.Sprintf("value is not '%s' encoded", problem.Want)
	case *kind.ContentMediaType:
		return fmt.Sprintf("value is not of mediatype '%s'", problem.Want)
	case *kind.Minimum:
		return bound("minimum", problem.Want)
	case *kind.Maximum:
		return bound("maximum", problem.Want)
	case *kind.ExclusiveMinimum:
		return bound("exclusiveMinimum", problem.Want)
	case *kind.ExclusiveMaximum:
		return bound("exclusiveMaximum", problem.Want)
	case *kind.MultipleOf:
		return bound("multipleOf", problem.Want)
	case *kind.MinLength:
		return fmt.Sprintf("minLength: want %d", problem.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("maxLength: want %d", problem.Want)
	}
	return ""
}

// A schema that is elsewhere would have to be fetched.
func checkSchemas(loaded *chart.Chart) error {
	if loaded.Schema != nil {
		var schema any
		if err := yaml.Unmarshal(loaded.Schema, &schema); err == nil {
			known := map[string]bool{}
			walk(schema, "$id", func(id string) { known[strings.TrimSuffix(id, "#")] = true })
			var remote string
			walk(schema, "$ref", func(reference string) {
				base, _, _ := strings.Cut(reference, "#")
				// What has a URN for a name Helm takes for anything.
				isLocal := base == "" || known[base] || strings.HasPrefix(base, "urn:") || isRelativeToKnown(known, base)
				if !isLocal && !isStandardSchema(base) {
					remote = reference
				}
			})
			if remote != "" {
				return refused("values.schema.json of chart %s refers to %s: rendering has no network; put that schema into the file, or set skipSchemaValidation",
					loaded.Name(), remote)
			}
		}
	}
	for _, dependency := range loaded.Dependencies() {
		if err := checkSchemas(dependency); err != nil {
			return err
		}
	}
	return nil
}

// The validator has these with it.
func isStandardSchema(base string) bool {
	return strings.HasPrefix(base, "http://json-schema.org/") || strings.HasPrefix(base, "https://json-schema.org/")
}

func isRelativeToKnown(known map[string]bool, base string) bool {
	if strings.Contains(base, "://") {
		return false
	}
	for id := range known {
		if strings.HasSuffix(id, "/"+strings.TrimPrefix(base, "/")) {
			return true
		}
	}
	return false
}

// Calls back with each string under a key, at whatever depth.
func walk(value any, key string, found func(string)) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if text, ok := inner.(string); ok && name == key {
				found(text)
			} else {
				walk(inner, key, found)
			}
		}
	case []any:
		for _, inner := range value {
			walk(inner, key, found)
		}
	}
}
