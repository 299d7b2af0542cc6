// age-vectors writes the test vectors of age into a folder, each as a file of its own.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	agetest "c2sp.org/CCTV/age"
)

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: age-vectors FOLDER"))
	}
	names, err := fs.Glob(agetest.Vectors, "*")
	fail(err)
	for _, name := range names {
		content, err := fs.ReadFile(agetest.Vectors, name)
		fail(err)
		fail(os.WriteFile(filepath.Join(os.Args[1], name), content, 0o600))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "age-vectors:", err)
		os.Exit(1)
	}
}
