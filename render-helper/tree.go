package main

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// Files by path, in memory.
type tree map[string][]byte

// Where a path leads from a folder; one that begins with / counts from the root. False if it leads out.
func resolve(folder, reference string) (string, bool) {
	if strings.HasPrefix(reference, "/") {
		folder = "."
	}
	clean := path.Join(folder, reference)
	clean = strings.TrimPrefix(clean, "/")
	if clean == "" {
		clean = "."
	}
	return clean, clean != ".." && !strings.HasPrefix(clean, "../")
}

func (t tree) isFolder(folder string) bool {
	if folder == "." {
		return true
	}
	for file := range t {
		if strings.HasPrefix(file, folder+"/") {
			return true
		}
	}
	return false
}

// The files below a folder by their paths in it, in the order of a walk.
func (t tree) below(folder string) []string {
	prefix := folder + "/"
	if folder == "." {
		prefix = ""
	}
	var files []string
	for file := range t {
		if strings.HasPrefix(file, prefix) {
			files = append(files, file[len(prefix):])
		}
	}
	slices.SortFunc(files, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return files
}

// What rules about names want to know of a file.
type fileInfo struct {
	name   string
	size   int
	folder bool
}

func (i fileInfo) Name() string { return i.name }
func (i fileInfo) Size() int64  { return int64(i.size) }
func (i fileInfo) Mode() fs.FileMode {
	if i.folder {
		return fs.ModeDir | 0o755
	}
	return 0o644
}
func (i fileInfo) ModTime() time.Time { return time.Time{} }
func (i fileInfo) IsDir() bool        { return i.folder }
func (i fileInfo) Sys() any           { return nil }
