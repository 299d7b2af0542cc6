package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

// The helm and kustomize programs of the user's choice.
type programs struct {
	helm, kustomize string
}

// They run on a folder of their own, within the same limits as plugins. What has no program is done by the library.
type chosen struct {
	programs
	libraries
}

func (c chosen) versions() map[string]string {
	versions := c.libraries.versions()
	ask := func(name, program string, arguments ...string) {
		if program == "" {
			return
		}
		output, err := exec.Command(program, arguments...).Output()
		versions[name] = program + " " + strings.TrimSpace(string(output))
		if err != nil {
			versions[name] = program
		}
	}
	ask("helm", c.programs.helm, "version", "--short")
	ask("kustomize", c.programs.kustomize, "version")
	return versions
}

func (c chosen) helm(asked *helmRequest, call *call) ([]object, error) {
	if c.programs.helm == "" {
		return c.libraries.helm(asked, call)
	}
	if asked.Lookup || len(asked.PostRenderers) > 0 {
		return nil, refused("a helm program of your own does neither lookup nor post-renderers here; leave them out, or the program")
	}
	folder, err := call.unpack()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	for _, file := range append([]string{path.Join(asked.Chart, chartutil.ValuesfileName)}, asked.ValuesFiles...) {
		if bytes.Contains(call.files[file], []byte(encryptedValue)) {
			return nil, refused("values file %s is still encrypted: it did not open here (sops updatekeys gives it this cluster's key)", file)
		}
	}
	arguments := []string{"template", asked.Release.Name, filepath.Join(folder, asked.Chart), "--namespace", asked.Release.Namespace}
	for _, file := range asked.ValuesFiles {
		if _, there := call.files[file]; there {
			arguments = append(arguments, "--values", filepath.Join(folder, file))
		} else if !asked.IgnoreMissingValues {
			return nil, fmt.Errorf("values file %s is not among the service's files", file)
		}
	}
	if len(asked.Values) > 0 {
		inline := filepath.Join(folder, ".farwater-values.yaml")
		if err := os.WriteFile(inline, asked.Values, 0o600); err != nil {
			return nil, err
		}
		arguments = append(arguments, "--values", inline)
	}
	if asked.Capabilities.KubeVersion != "" {
		arguments = append(arguments, "--kube-version", asked.Capabilities.KubeVersion)
	}
	if len(asked.Capabilities.APIVersions) > 0 {
		arguments = append(arguments, "--api-versions", strings.Join(asked.Capabilities.APIVersions, ","))
	}
	for flag, wanted := range map[string]bool{
		"--include-crds": !asked.SkipCRDs, "--skip-tests": asked.SkipTests, "--no-hooks": asked.SkipHooks,
		"--skip-schema-validation": asked.SkipSchema, "--is-upgrade": asked.Release.IsUpgrade,
	} {
		if wanted {
			arguments = append(arguments, flag)
		}
	}
	output, err := call.execute(folder, append([]string{c.programs.helm}, arguments...))
	if err != nil {
		return nil, err
	}
	return call.readOutput(asked.Chart, output)
}

func (c chosen) kustomize(asked *kustomizeRequest, call *call) ([]object, error) {
	if c.programs.kustomize == "" {
		return c.libraries.kustomize(asked, call)
	}
	edited := preparation{call: call, files: call.files}
	if err := edited.edit(asked); err != nil {
		return nil, err
	}
	if err := edited.localize(); err != nil {
		return nil, err
	}
	folder, err := call.unpack()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	arguments := []string{c.programs.kustomize, "build", filepath.Join(folder, asked.Path)}
	if asked.LoadOutside {
		arguments = append(arguments, "--load-restrictor", "LoadRestrictionsNone")
	}
	if c.programs.helm != "" {
		arguments = append(arguments, "--enable-helm", "--helm-command", c.programs.helm)
	}
	output, err := call.execute(folder, arguments)
	if err != nil {
		return nil, err
	}
	return call.readOutput(asked.Path, output)
}

// The files, in a new folder.
func (c *call) unpack() (string, error) {
	parent := ""
	if otherUser() != 0 {
		// Its folders are nobody else's.
		parent = "/tmp"
	}
	folder, err := os.MkdirTemp(parent, "farwater-render-")
	if err != nil {
		return "", err
	}
	for file, content := range c.files {
		path := filepath.Join(folder, file)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, content, 0o600)
		}
		if err != nil {
			return "", errors.Join(err, os.RemoveAll(folder))
		}
	}
	return folder, nil
}

// Processes of helm or kustomize with what they start, and threads, which count too.
const maxProcesses = 256

func (c *call) execute(folder string, program []string) (string, error) {
	var output, problems bytes.Buffer
	run := supervised{
		program:     program,
		folder:      folder,
		environment: []string{"HOME=" + folder, "TMPDIR=" + folder},
		output:      &limitedWriter{&output, c.limits.OutputBytes},
		errors:      &limitedWriter{&problems, maxMessage},
		bounds: bounds{
			Seconds:    c.limits.Seconds,
			CPUSeconds: c.limits.CPUSeconds,
			// As plugins have: the rest is for this process, and for what is taken between two looks.
			MemoryBytes: c.limits.MemoryBytes / 4 * 3,
			Processes:   maxProcesses,
			FileBytes:   maxChartBytes,
			Read:        []string{filepath.Dir(program[0])},
			Write:       []string{folder},
			Place:       folder,
		},
	}
	err := run.run()
	said := strings.ReplaceAll(strings.TrimSpace(problems.String()), folder+"/", "")
	switch {
	case errors.Is(err, errBeyond):
		return "", &failure{reasonLimit, err.Error()}
	case err != nil && said != "":
		return "", errors.New(said)
	case err != nil:
		return "", fmt.Errorf("%s: %w", filepath.Base(program[0]), err)
	}
	if output.Len() >= c.limits.OutputBytes {
		return "", c.checkOutput(output.Len() + 1)
	}
	return output.String(), nil
}

// Takes everything, and keeps the beginning.
type limitedWriter struct {
	to   *bytes.Buffer
	most int
}

func (w *limitedWriter) Write(bytes []byte) (int, error) {
	if left := w.most - w.to.Len(); left > 0 {
		w.to.Write(bytes[:min(left, len(bytes))])
	}
	return len(bytes), nil
}

// The objects, by the file that Helm names before each.
func (c *call) readOutput(source, output string) ([]object, error) {
	var objects []object
	for _, document := range documents(output) {
		from := source
		if first, _, _ := strings.Cut(document, "\n"); strings.HasPrefix(first, "# Source: ") {
			from = strings.TrimSpace(strings.TrimPrefix(first, "# Source: "))
		}
		read, err := c.read(from, document)
		if err != nil {
			return nil, err
		}
		if objects = append(objects, read...); len(objects) > maxObjects {
			return nil, &failure{reasonLimit, fmt.Sprintf("over %d objects", maxObjects)}
		}
	}
	return objects, nil
}
