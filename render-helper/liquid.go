package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/osteele/liquid"
	"github.com/osteele/liquid/expressions"
	"github.com/osteele/liquid/parser"
	"github.com/osteele/liquid/render"
	"sigs.k8s.io/yaml"
)

// Each file whose name ends in .liquid is a template, and becomes the file without that ending.
type liquidRequest struct {
	// What templates see, by name.
	Parameters json.RawMessage `json:"parameters"`
}

const liquidSuffix = ".liquid"

// Longest result of one template.
const maxTemplate = 16 << 20

func renderLiquid(asked *liquidRequest, call *call) (tree, error) {
	parameters := map[string]any{}
	if len(asked.Parameters) > 0 {
		decoder := json.NewDecoder(strings.NewReader(string(asked.Parameters)))
		decoder.UseNumber()
		if err := decoder.Decode(&parameters); err != nil {
			return nil, fmt.Errorf("parameters: %w", err)
		}
	}
	parameters, _ = plain(parameters).(map[string]any)
	engine := newEngine()
	rendered := tree{}
	bytes := 0
	for _, file := range call.files.below(".") {
		name, isTemplate := strings.CutSuffix(file, liquidSuffix)
		if !isTemplate {
			continue
		}
		if _, there := call.files[name]; there {
			return nil, fmt.Errorf("%s would become %s, which is there already; keep one of them", file, name)
		}
		text, err := renderTemplate(engine, file, string(call.files[file]), parameters)
		if err != nil {
			return nil, err
		}
		if bytes += len(text); len(text) > maxTemplate {
			return nil, &failure{reasonLimit, fmt.Sprintf("%s: the result has %d bytes; at most %d are taken", file, len(text), maxTemplate)}
		}
		if err := call.checkOutput(bytes); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		rendered[name] = text
	}
	return rendered, nil
}

// Whole numbers as such: 1e+06 is no port.
func plain(value any) any {
	switch value := value.(type) {
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return int(whole)
		}
		number, _ := value.Float64()
		return number
	case map[string]any:
		for name, inner := range value {
			value[name] = plain(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = plain(inner)
		}
	}
	return value
}

func renderTemplate(engine *liquid.Engine, file, text string, parameters map[string]any) ([]byte, error) {
	if !strings.Contains(text, "{{") && !strings.Contains(text, "{%") {
		return []byte(text), nil
	}
	template, problem := engine.ParseTemplateLocation([]byte(strictLoops(text)), file, 1)
	if problem != nil {
		return nil, explain(file, text, problem, "")
	}
	// A template that assigns changes nothing for the next one.
	own := make(map[string]any, len(parameters))
	for name, value := range parameters {
		own[name] = value
	}
	result, problem := template.Render(own)
	if problem != nil {
		return nil, explain(file, text, problem, withoutValues(problem.Cause()))
	}
	return result, nil
}

// `message`: in place of the engine's own.
func explain(file, text string, problem liquid.SourceError, message string) error {
	var known *failure
	if errors.As(problem.Cause(), &known) {
		return &failure{known.Reason, fmt.Sprintf("%s:%d: %s", file, problem.LineNumber(), known.Message)}
	}
	place := fmt.Sprintf("%s:%d", file, problem.LineNumber())
	if problem.LineNumber() == 0 {
		place = file
	}
	tokens := strings.Join(tokensAt(text, problem.LineNumber()), " or ")
	if strings.Contains(problem.Error(), undefined) {
		return fmt.Errorf("%s: %s in %s; set it, or write | default:", place, undefined, tokens)
	}
	if message != "" {
		return fmt.Errorf("%s: %s in %s", place, message, tokens)
	}
	message = strings.TrimSuffix(problem.Error(), " in "+file)
	message = strings.TrimPrefix(message, fmt.Sprintf("Liquid error (line %d): ", problem.LineNumber()))
	message = strings.TrimPrefix(message, "Liquid error: ")
	return fmt.Errorf("%s: %s", place, strings.ReplaceAll(message, loopFilter, ""))
}

// What is wrong without the parameters that it is wrong with: they count as secret, and the engine's messages have them. Empty where
// a message has only what the template itself says.
func withoutValues(cause error) string {
	var filter expressions.FilterError
	var unknown expressions.UndefinedFilter
	var own filterError
	switch {
	case cause == nil || errors.As(cause, &unknown):
		return ""
	case errors.As(cause, &filter) && errors.As(filter.Err, &own):
		return fmt.Sprintf("filter %s: %s", filter.FilterName, own)
	case errors.As(cause, &filter) && filter.Err.Error() == "division by zero":
		return fmt.Sprintf("filter %s: division by zero", filter.FilterName)
	case errors.As(cause, &filter):
		return fmt.Sprintf("filter %s can't be applied to such a value", filter.FilterName)
	default:
		return "a value is not what is needed"
	}
}

// Of a filter of ours; it holds no value.
type filterError string

func (e filterError) Error() string { return string(e) }

// As the engine calls it.
const undefined = "undefined variable"

// What stands on a line between braces.
func tokensAt(text string, line int) []string {
	var found []string
	for _, token := range parser.Scan(text, parser.SourceLoc{LineNo: 1}, nil) {
		if token.SourceLoc.LineNo == line && (token.Type == parser.ObjTokenType || token.Name == "for" || token.Name == "tablerow") {
			found = append(found, token.Source)
		}
	}
	return found
}

// The engine finds what is undefined where it is written out, and takes it for an empty list in loops.
const loopFilter = "|farwater_defined"

var loop = regexp.MustCompile(`^(\s*[\w-]+\s+in\s+)((?:[\w-]+\??)(?:\.[\w-]+\??|\[[^\]]*\])*)(.*)$`)

// The template with each loop over a name made to fail if there is no such thing. Lines stay where they are.
func strictLoops(text string) string {
	var out strings.Builder
	raw := ""
	for _, token := range parser.Scan(text, parser.SourceLoc{}, nil) {
		if token.Type == parser.TrimLeftTokenType || token.Type == parser.TrimRightTokenType {
			continue
		}
		isTag := token.Type == parser.TagTokenType
		switch {
		case raw != "":
			if isTag && token.Name == "end"+raw {
				raw = ""
			}
		case isTag && (token.Name == "raw" || token.Name == "comment"):
			raw = token.Name
		case isTag && (token.Name == "for" || token.Name == "tablerow"):
			if parts := loop.FindStringSubmatch(token.Args); parts != nil {
				strict := parts[1] + parts[2] + loopFilter + parts[3]
				token.Source = strings.Replace(token.Source, token.Args, strict, 1)
			}
		}
		out.WriteString(token.Source)
	}
	return out.String()
}

func newEngine() *liquid.Engine {
	engine := liquid.NewEngine()
	engine.StrictVariables()
	engine.RegisterFilter("farwater_defined", func(value any) (any, error) {
		if value == nil {
			return nil, filterError(undefined)
		}
		return value, nil
	})
	engine.RegisterTag("include", func(context render.Context) (string, error) {
		return "", refused("include %s: templates include no files", context.TagArgs())
	})
	// What templates of manifests need beside Liquid's own filters, named as in Helm's templates.
	engine.RegisterFilter("b64enc", func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) })
	engine.RegisterFilter("b64dec", func(text string) (string, error) {
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", filterError("it is not base64")
		}
		return string(decoded), nil
	})
	engine.RegisterFilter("indent", indent)
	engine.RegisterFilter("nindent", func(text string, spaces int) (string, error) {
		indented, err := indent(text, spaces)
		return "\n" + indented, err
	})
	quoted := func(value any) (string, error) {
		text, err := json.Marshal(fmt.Sprint(value))
		return string(text), err
	}
	engine.RegisterFilter("quote", quoted)
	engine.RegisterFilter("squote", func(value any) string {
		return "'" + strings.ReplaceAll(fmt.Sprint(value), "'", "''") + "'"
	})
	toYAML := func(value any) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	engine.RegisterFilter("toYaml", toYAML)
	engine.RegisterFilter("to_yaml", toYAML)
	toJSON := func(value any) (string, error) {
		text, err := json.Marshal(value)
		return string(text), err
	}
	engine.RegisterFilter("toJson", toJSON)
	engine.RegisterFilter("to_json", toJSON)
	fromYAML := func(text string) (any, error) {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			return nil, filterError("it is neither JSON nor YAML")
		}
		return value, nil
	}
	for _, name := range []string{"fromYaml", "from_yaml", "fromJson", "from_json"} {
		engine.RegisterFilter(name, fromYAML)
	}
	engine.RegisterFilter("sha256sum", func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) })
	return engine
}

// Deeper than any manifest, and no way to fill memory.
const maxIndent = 200

func indent(text string, spaces int) (string, error) {
	if spaces < 0 || spaces > maxIndent {
		return "", filterError(fmt.Sprintf("between 0 and %d spaces are possible", maxIndent))
	}
	pad := strings.Repeat(" ", spaces)
	return pad + strings.ReplaceAll(text, "\n", "\n"+pad), nil
}
