// Farwater-render turns charts, kustomizations and templates into Kubernetes objects for Farwater's agent and command line: Helm's and
// Kustomize's own libraries behind messages on standard input and output.
//
// It is started by who wants something rendered, and ends when its standard input does. It reads no file and opens no socket: what it
// works on is in the messages, and before it reads the first one it gives up what it doesn't need (lock_linux.go). The messages are
// described in message.go and in docs/renderers.md; any program that speaks them can take its place.
//
//	farwater-render                               speaks the messages
//	farwater-render --helm PATH --kustomize PATH  the same, with these programs in the place of the libraries
//	farwater-render confine FLAGS -- PROGRAM …    runs a plugin within limits
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"time"
	_ "time/tzdata" // Templates name time zones, and there are no files.
)

// Set by the linker in what is shipped.
var version = "(devel)"

// Exit codes that the parent tells apart.
const (
	exitUsage = 2
	// The program gave an answer that names the limit, or was about to.
	exitLimit = 3
)

func main() {
	time.Local = time.UTC
	http.DefaultTransport = refusingTransport{}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "confine":
			os.Exit(confine(os.Args[2:]))
		case confinedArgument:
			os.Exit(enter(os.Args[2:]))
		}
	}
	programs, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitUsage)
	}
	// Deep recursion ends as an error of the request, long before the memory does.
	debug.SetMaxStack(64 << 20)
	takeShortTurns()
	var renderer renderer = libraries{}
	confinement := confinement{}
	if programs.helm != "" || programs.kustomize != "" {
		renderer = chosen{programs: programs}
	} else {
		confinement = lock()
	}
	os.Exit(serve(os.Stdin, os.Stdout, renderer, confinement))
}

func parse(arguments []string) (programs, error) {
	flags := flag.NewFlagSet("farwater-render", flag.ContinueOnError)
	var programs programs
	flags.StringVar(&programs.helm, "helm", "", "a helm `program` to use instead of the library")
	flags.StringVar(&programs.kustomize, "kustomize", "", "a kustomize `program` to use instead of the library")
	show := flags.Bool("version", false, "print the versions and end")
	if err := flags.Parse(arguments); err != nil {
		return programs, err
	}
	if *show {
		fmt.Printf("farwater-render %s, helm %s, kustomize api %s\n", version, module("helm.sh/helm/v4"), module("sigs.k8s.io/kustomize/api"))
		os.Exit(0)
	}
	if flags.NArg() > 0 {
		return programs, fmt.Errorf("farwater-render: unexpected argument %q", flags.Arg(0))
	}
	return programs, nil
}

// The version of a module that this program was built with.
func module(path string) string {
	info, _ := debug.ReadBuildInfo()
	if info != nil {
		for _, dependency := range info.Deps {
			if dependency.Path == path {
				return dependency.Version
			}
		}
	}
	return "unknown"
}
