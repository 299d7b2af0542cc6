//go:build !linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

const confinedArgument = "confined"

type bounds struct {
	Seconds     float64
	CPUSeconds  uint64
	MemoryBytes uint64
	Processes   int
	FileBytes   uint64
	Read, Write []string
	Place       string
}

func confine([]string) int {
	fmt.Fprintln(os.Stderr, "plugins need Linux, which keeps their limits")
	return exitUsage
}

func enter([]string) int { return exitUsage }

func otherUser() int { return 0 }

type supervised struct {
	program        []string
	folder         string
	environment    []string
	input          io.Reader
	output, errors io.Writer
	bounds         bounds
}

func (supervised) run() error {
	return errors.New("programs of your own need Linux, which keeps their limits")
}
