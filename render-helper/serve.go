package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// What makes objects of a request.
type renderer interface {
	versions() map[string]string
	helm(*helmRequest, *call) ([]object, error)
	kustomize(*kustomizeRequest, *call) ([]object, error)
	patch(*patchRequest, *call) ([]object, error)
}

// Helm's and Kustomize's own.
type libraries struct{}

func (libraries) versions() map[string]string {
	return map[string]string{
		"farwater-render": version,
		"helm":            module("helm.sh/helm/v4"),
		"kustomize":       module("sigs.k8s.io/kustomize/api"),
		"liquid":          module("github.com/osteele/liquid"),
	}
}

// One object and the file that it was made from.
type object struct {
	source string
	json   []byte
	// As it was written, for who reads it by other rules; if the call keeps it.
	text string
}

// A request that is being answered.
type call struct {
	files tree
	// Their paths as they came.
	order  []string
	limits limits
	// Folders of other repositories, by the words that name them in kustomizations.
	bases     map[string]string
	warnings  []string
	wire      *wire
	keepsText bool
	// No question more is answered for it once it has failed.
	asked int
}

// Lookups of one render: each waits for the parent, and a template can loop.
const maxLookups = 1000

// Above it memory is given back after a request: what one chart needed is not what the next does. Below it that would take longer than
// a render.
const keptMemory = 96 << 20

// Warnings that are told; the rest says nothing new.
const maxWarnings = 50

func (c *call) warn(format string, arguments ...any) {
	if len(c.warnings) < maxWarnings {
		c.warnings = append(c.warnings, shorten(fmt.Sprintf(format, arguments...)))
	}
}

// The two pipes. Whoever finishes a request first answers it: who renders, or who watches the limits.
type wire struct {
	in     *bufio.Reader
	out    io.Writer
	lock   sync.Mutex
	closed bool
}

func (w *wire) send(header any, body ...[]byte) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.closed {
		return errors.New("a limit was reached")
	}
	return writeMessage(w.out, header, body...)
}

// The last word of this program: it can't stop what it is doing otherwise.
func (w *wire) exceed(message string) {
	w.lock.Lock()
	w.closed = true
	_ = writeMessage(w.out, answer{Failed: &failure{reasonLimit, message}})
	os.Exit(exitLimit)
}

// Asks the parent about objects of the cluster.
func (c *call) ask(question lookup) (map[string]any, error) {
	c.asked++
	if c.asked > maxLookups {
		return nil, &failure{reasonLimit, fmt.Sprintf("more than %d lookups in one render", maxLookups)}
	}
	if err := c.wire.send(answer{Lookup: &question}); err != nil {
		return nil, err
	}
	var reply lookupAnswer
	if _, err := readMessage(c.wire.in, &reply); err != nil {
		// Without its parent there is nobody to render for.
		os.Exit(0)
	}
	if reply.Refused != "" {
		return nil, refused("lookup of %s %s: %s", question.APIVersion, question.Kind, reply.Refused)
	}
	found := map[string]any{}
	if len(reply.Found) > 0 {
		// Whole numbers stay such, as in what Helm itself gets from a cluster.
		if err := utiljson.Unmarshal(reply.Found, &found); err != nil {
			return nil, err
		}
	}
	if found == nil {
		return map[string]any{}, nil
	}
	return found, nil
}

func serve(in io.Reader, out io.Writer, renderer renderer, confinement confinement) int {
	// Helm's own warnings are for people at a terminal; what counts of them is in the answers.
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	wire := &wire{in: bufio.NewReader(in), out: out}
	hello := ready{Protocol: 1, Program: "farwater-render", Versions: renderer.versions(), Confinement: confinement}
	if err := wire.send(answer{Ready: &hello}); err != nil {
		return 1
	}
	for {
		var asked request
		body, err := readMessage(wire.in, &asked)
		if err == io.EOF {
			return 0
		}
		if err != nil {
			_ = wire.send(answer{Failed: &failure{reasonInternal, err.Error()}})
			return 1
		}
		limitProcess(asked.Limits)
		watch := watch(asked.Limits, wire)
		reply := handle(&asked, body, renderer, wire)
		watch.stop()
		if err := wire.send(reply, reply.body...); err != nil {
			return 1
		}
		asked, body, reply = request{}, nil, answer{}
		if memory() > keptMemory {
			debug.FreeOSMemory()
		}
	}
}

func handle(asked *request, body []byte, renderer renderer, wire *wire) (reply answer) {
	call := &call{limits: asked.Limits, bases: asked.Bases, wire: wire}
	defer func() {
		if problem := recover(); problem != nil {
			// Its text may have values in it.
			what := fmt.Sprintf("%T", problem)
			if mistake, is := problem.(runtime.Error); is {
				what = mistake.Error()
			}
			reply = answer{Failed: &failure{reasonInternal, shorten("the renderer failed: " + what)}}
		}
	}()
	fail := func(err error) answer {
		var known *failure
		if errors.As(err, &known) {
			// Where it happened stands around it.
			return answer{Failed: &failure{known.Reason, shorten(err.Error())}}
		}
		return answer{Failed: &failure{reasonInput, shorten(err.Error())}}
	}
	var err error
	if call.files, err = files(asked.Files, body); err != nil {
		return fail(err)
	}
	for _, file := range asked.Files {
		call.order = append(call.order, file.Path)
	}
	if asked.Liquid != nil {
		rendered, err := renderLiquid(asked.Liquid, call)
		if err != nil {
			return fail(err)
		}
		return finished(call, rendered)
	}
	var objects []object
	switch {
	case asked.Helm != nil:
		objects, err = renderer.helm(asked.Helm, call)
	case asked.Kustomize != nil:
		objects, err = renderer.kustomize(asked.Kustomize, call)
	case asked.Patch != nil:
		objects, err = renderer.patch(asked.Patch, call)
	default:
		err = &failure{reasonInternal, "the request asks for nothing that is known here"}
	}
	if err == nil {
		err = call.checkOutput(size(objects))
	}
	if err != nil {
		return fail(err)
	}
	list := done{Warnings: call.warnings}
	var bodies [][]byte
	for _, object := range objects {
		list.Objects = append(list.Objects, part{object.source, int64(len(object.json))})
		bodies = append(bodies, object.json)
	}
	return answer{Done: &list, body: bodies}
}

func finished(call *call, rendered tree) answer {
	list := done{Warnings: call.warnings}
	var bodies [][]byte
	for _, path := range rendered.below(".") {
		list.Files = append(list.Files, part{path, int64(len(rendered[path]))})
		bodies = append(bodies, rendered[path])
	}
	return answer{Done: &list, body: bodies}
}

func size(objects []object) int {
	total := 0
	for _, object := range objects {
		total += len(object.json)
	}
	return total
}

func (c *call) checkOutput(bytes int) error {
	if bytes > c.limits.OutputBytes {
		return &failure{reasonLimit, fmt.Sprintf("the output has %d bytes; at most %d are taken", bytes, c.limits.OutputBytes)}
	}
	return nil
}

// The longest message: enough for a schema's complaints.
const maxMessage = 8 << 10

// Both ends of a message that is too long: where it began, and the cause, which Go's errors have last.
func shorten(message string) string {
	message = strings.ToValidUTF8(strings.TrimSpace(message), "�")
	if len(message) <= maxMessage {
		return message
	}
	begin, end := message[:maxMessage*3/4], message[len(message)-maxMessage/4:]
	// Whole words: whoever hides secrets in the message would not know a part of one.
	begin = begin[:strings.LastIndexAny(begin, "\n ")+1]
	if first := strings.IndexAny(end, "\n "); first >= 0 {
		end = end[first:]
	} else {
		end = ""
	}
	return strings.ToValidUTF8(begin, "") + " … " + strings.ToValidUTF8(end, "")
}

// What takes longer lets others go first. The parent has a time of its own for this (LONG in crates/render/src/helper.rs), which is as long
// and begins earlier: it knows of each process that has given way, and uses it for no other request.
const long = 100 * time.Millisecond

type watcher struct{ ended, done chan struct{} }

// Ends the program when a request takes too long or too much.
func watch(limits limits, wire *wire) watcher {
	w := watcher{make(chan struct{}), make(chan struct{})}
	// The garbage collector works harder before the limit is reached, which is below what the kernel allows.
	most := limits.MemoryBytes / 8 * 7
	debug.SetMemoryLimit(int64(most / 4 * 3))
	go func() {
		defer close(w.done)
		// Templates write about 1 GB/s: within a tick no more than a few MB. A tick may come late, on a machine that is busy or while a large
		// copy is made; then the kernel's limit holds.
		tick := time.NewTicker(4 * time.Millisecond)
		defer tick.Stop()
		deadline := time.After(time.Duration(limits.Seconds * float64(time.Second)))
		isLong := time.After(long)
		for {
			select {
			case <-w.ended:
				return
			case <-isLong:
				giveWay()
			case <-deadline:
				wire.exceed(fmt.Sprintf("rendering took over %g s", limits.Seconds))
			case <-tick.C:
				if memory() > most {
					wire.exceed(fmt.Sprintf("rendering took over %d MiB of memory", most>>20))
				}
			}
		}
	}()
	return w
}

func (w watcher) stop() {
	close(w.ended)
	<-w.done
}

// What this process holds of the machine's memory.
func memory() uint64 {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// Libraries fetch what is remote with the default client.
type refusingTransport struct{}

func (refusingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	return nil, refused("%s: rendering has no network; keep the file in the repository", request.URL.Redacted())
}
