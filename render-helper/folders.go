package main

import (
	"fmt"
	"path"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// The files as kustomize looks at them: below /. Its own file system in memory takes not every name that a repository has. What is
// not asked for here is answered by an empty one.
type folders struct {
	filesys.FileSystem
	files tree
	known map[string]bool
}

func newFolders(files tree) folders {
	known := map[string]bool{".": true}
	for file := range files {
		for folder := path.Dir(file); !known[folder]; folder = path.Dir(folder) {
			known[folder] = true
		}
	}
	return folders{filesys.MakeFsInMemory(), files, known}
}

func place(name string) string {
	if clean := strings.TrimPrefix(path.Clean("/"+name), "/"); clean != "" {
		return clean
	}
	return "."
}

func (f folders) IsDir(name string) bool { return f.known[place(name)] }

func (f folders) Exists(name string) bool {
	_, isFile := f.files[place(name)]
	return isFile || f.IsDir(name)
}

func (f folders) ReadFile(name string) ([]byte, error) {
	content, there := f.files[place(name)]
	switch {
	case there:
		return content, nil
	case f.IsDir(name):
		return nil, fmt.Errorf("read %s: is a directory", name)
	default:
		return nil, missing(name)
	}
}

func (f folders) CleanedAbs(name string) (filesys.ConfirmedDir, string, error) {
	at := place(name)
	switch {
	case at == ".":
		return "/", "", nil
	case f.known[at]:
		return filesys.ConfirmedDir("/" + at), "", nil
	case f.Exists(name):
		folder := strings.TrimSuffix("/"+path.Dir(at), "/.")
		return filesys.ConfirmedDir(firstOf(folder, "/")), path.Base(at), nil
	default:
		return "", "", missing(name)
	}
}

func missing(name string) error { return fmt.Errorf("'%s' doesn't exist", name) }
