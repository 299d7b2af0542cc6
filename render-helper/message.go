package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
)

// A message, either way, is
//
//	length of the header   4 bytes, big endian
//	length of the body     8 bytes, big endian
//	header                 JSON, one object
//	body                   bytes; what the header lists, one after the other
//
// The program begins with {"ready": …}. Each request has one of helm, kustomize, liquid and patch, and one answer: done or failed.
// Before it, with "lookup": true in a request of Helm, there may be questions {"lookup": …}, each answered by {"found": …} or
// {"refused": …}. One request at a time. The program ends when its input does, and after a limit was reached.
const (
	// Values and capabilities are in headers; a cluster with 300 definitions names some 60 KiB of versions.
	maxHeader = 32 << 20
	maxBody   = 256 << 20
)

// What a program of this contract says first.
type ready struct {
	// 1; a parent that knows no other refuses another.
	Protocol int    `json:"protocol"`
	Program  string `json:"program"`
	// What decides about the output besides the request: part of the key under which it is cached.
	Versions    map[string]string `json:"versions"`
	Confinement confinement       `json:"confinement"`
}

// What holds besides the limits of the request.
type confinement struct {
	// Version of the kernel's interface; 0: files are not kept away by the kernel.
	Landlock int `json:"landlock"`
	// No sockets, programs or files, by the kernel.
	Seccomp bool `json:"seccomp"`
}

type request struct {
	Helm      *helmRequest      `json:"helm,omitempty"`
	Kustomize *kustomizeRequest `json:"kustomize,omitempty"`
	Liquid    *liquidRequest    `json:"liquid,omitempty"`
	Patch     *patchRequest     `json:"patch,omitempty"`
	// Folders of other repositories that lie among the files, by the words that kustomizations name them by.
	Bases map[string]string `json:"bases,omitempty"`
	// By path, in the order of the body. Symbolic links are resolved by who asks.
	Files  []part `json:"files,omitempty"`
	Limits limits `json:"limits"`
}

type limits struct {
	Seconds    float64 `json:"seconds"`
	CPUSeconds uint64  `json:"cpuSeconds"`
	// Of the whole process.
	MemoryBytes uint64 `json:"memoryBytes"`
	OutputBytes int    `json:"outputBytes"`
}

// Bytes of a body: a file with its path, or an object with the file that it was made from.
type part struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

type answer struct {
	Ready  *ready   `json:"ready,omitempty"`
	Lookup *lookup  `json:"lookup,omitempty"`
	Done   *done    `json:"done,omitempty"`
	Failed *failure `json:"failed,omitempty"`
	body   [][]byte `json:"-"`
}

type done struct {
	// Each is one JSON object; of liquid: files.
	Objects  []part   `json:"objects,omitempty"`
	Files    []part   `json:"files,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Why nothing was rendered.
type failure struct {
	Reason  reason `json:"reason"`
	Message string `json:"message"`
}

type reason string

const (
	// The files or the options are not right.
	reasonInput reason = "Input"
	// Time, memory or output.
	reasonLimit reason = "Limit"
	// Something was asked for that rendering doesn't do: network, files, programs.
	reasonRefused reason = "Refused"
	// A mistake of this program.
	reasonInternal reason = "Internal"
)

func (f *failure) Error() string { return f.Message }

func refused(format string, arguments ...any) error {
	return &failure{reasonRefused, fmt.Sprintf(format, arguments...)}
}

// Of an object in the cluster, or of all of a kind (name is empty).
type lookup struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
}

// The parent's word on a lookup.
type lookupAnswer struct {
	// The object or the list; null where there is none.
	Found   json.RawMessage `json:"found"`
	Refused string          `json:"refused"`
}

func readMessage(in io.Reader, header any) ([]byte, error) {
	var lengths [12]byte
	if _, err := io.ReadFull(in, lengths[:]); err != nil {
		return nil, err
	}
	head, body := binary.BigEndian.Uint32(lengths[:4]), binary.BigEndian.Uint64(lengths[4:])
	if head > maxHeader || body > maxBody {
		return nil, fmt.Errorf("a message has a header of %d and a body of %d bytes; at most %d and %d are taken", head, body, maxHeader, maxBody)
	}
	text := make([]byte, head)
	if _, err := io.ReadFull(in, text); err != nil {
		return nil, cut(err)
	}
	if err := json.Unmarshal(text, header); err != nil {
		return nil, fmt.Errorf("read a message's header: %w", err)
	}
	bytes := make([]byte, body)
	if _, err := io.ReadFull(in, bytes); err != nil {
		return nil, cut(err)
	}
	return bytes, nil
}

// The end of the input in a message is no orderly end.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func writeMessage(out io.Writer, header any, body ...[]byte) error {
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	total := 0
	for _, bytes := range body {
		total += len(bytes)
	}
	var lengths [12]byte
	binary.BigEndian.PutUint32(lengths[:4], uint32(len(text)))
	binary.BigEndian.PutUint64(lengths[4:], uint64(total))
	if _, err := out.Write(append(lengths[:], text...)); err != nil {
		return err
	}
	for _, bytes := range body {
		if _, err := out.Write(bytes); err != nil {
			return err
		}
	}
	return nil
}

// Takes a body apart. The files share its memory.
func files(parts []part, body []byte) (tree, error) {
	files := make(tree, len(parts))
	for _, part := range parts {
		if !fs.ValidPath(part.Path) || part.Path == "." {
			return nil, fmt.Errorf("path %q of a file is not relative and clean", part.Path)
		}
		if part.Size < 0 || part.Size > int64(len(body)) {
			return nil, fmt.Errorf("file %q has %d bytes, and %d are left", part.Path, part.Size, len(body))
		}
		if _, twice := files[part.Path]; twice {
			return nil, fmt.Errorf("file %q is there twice", part.Path)
		}
		files[part.Path], body = body[:part.Size:part.Size], body[part.Size:]
	}
	if len(body) > 0 {
		return nil, fmt.Errorf("%d bytes of the body belong to no file", len(body))
	}
	return files, nil
}
