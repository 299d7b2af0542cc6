package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// The first argument of this program where it is about to become another one.
const confinedArgument = "confined"

// Exit codes of confine besides the program's own.
const (
	exitBeyond   = 121
	exitNotBegun = 122
	exitStopped  = 123
)

// What a program of somebody else's and all that it starts may use.
type bounds struct {
	Seconds float64 `json:"seconds"`
	// Of each process.
	CPUSeconds uint64 `json:"cpuSeconds"`
	// Of all of them together.
	MemoryBytes uint64 `json:"memoryBytes"`
	Processes   int    `json:"processes"`
	// Longest file that is written.
	FileBytes uint64 `json:"fileBytes"`
	// Folders, where the kernel has Landlock.
	Read  []string `json:"read"`
	Write []string `json:"write"`
	// Made for this run: where the program is to be another user, it is shared with that one.
	Place string `json:"place"`
}

// Programs and what they are linked with.
var systemFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/etc/alternatives"}

var systemFiles = []string{"/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/dev/urandom", "/dev/random"}

// Runs a program between its own standard input and output.
func confine(arguments []string) int {
	flags := flag.NewFlagSet("farwater-render confine", flag.ContinueOnError)
	var asked supervised
	var read, write stringList
	flags.Float64Var(&asked.bounds.Seconds, "seconds", 60, "how long it may take")
	flags.Uint64Var(&asked.bounds.CPUSeconds, "cpu-seconds", 30, "the processor's time for each process")
	flags.Uint64Var(&asked.bounds.MemoryBytes, "memory-bytes", 384<<20, "memory of all processes together")
	flags.IntVar(&asked.bounds.Processes, "processes", 64, "processes at one time")
	flags.Uint64Var(&asked.bounds.FileBytes, "file-bytes", 64<<20, "longest file that it may write")
	flags.Var(&read, "read", "a `folder` that it may read; may be repeated")
	flags.Var(&write, "write", "a `folder` that it may write to; may be repeated")
	flags.StringVar(&asked.bounds.Place, "place", "", "the `folder` that was made for it, and that nobody else needs")
	if err := flags.Parse(arguments); err != nil || flags.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: farwater-render confine [flags] -- PROGRAM [ARGUMENT…]")
		return exitUsage
	}
	asked.bounds.Read, asked.bounds.Write = read, write
	asked.program, asked.environment = flags.Args(), os.Environ()
	asked.input, asked.output, asked.errors = os.Stdin, os.Stdout, os.Stderr
	err := asked.run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errBeyond):
		fmt.Fprintln(os.Stderr, err)
		return exitBeyond
	case errors.Is(err, errStopped):
		return exitStopped
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	case errors.As(err, &exit):
		fmt.Fprintln(os.Stderr, describe(exit, asked.bounds.CPUSeconds))
		return exitBeyond
	default:
		fmt.Fprintln(os.Stderr, err)
		return exitNotBegun
	}
}

// Of a program that a signal ended. The first process of a namespace takes no notice of the one for its time, and is killed.
func describe(exit *exec.ExitError, cpuSeconds uint64) string {
	status, ok := exit.Sys().(syscall.WaitStatus)
	used := exit.UserTime() + exit.SystemTime()
	if ok && status.Signal() == syscall.SIGXCPU || used >= time.Duration(cpuSeconds)*time.Second {
		return "it took too much of the processor's time"
	}
	return "it ended with " + exit.Error()
}

type stringList []string

func (l *stringList) String() string { return strings.Join(*l, ",") }
func (l *stringList) Set(text string) error {
	*l = append(*l, text)
	return nil
}

type supervised struct {
	program        []string
	folder         string
	environment    []string
	input          io.Reader
	output, errors io.Writer
	bounds         bounds
}

var (
	errBeyond  = errors.New("a limit was reached")
	errStopped = errors.New("it was stopped")
)

// Between two looks at what the program and its children use. A fork bomb makes some hundred processes in it.
const lookEvery = 20 * time.Millisecond

// Runs the program until it ends or goes beyond its bounds. Nothing that it started is left.
func (s *supervised) run() error {
	// The kernel ends the program with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	command, err := s.start()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(stop)
	parent := os.Getppid()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	deadline := time.After(time.Duration(s.bounds.Seconds * float64(time.Second)))
	var verdict error
	for {
		select {
		case err := <-ended:
			endAll(command.Process)
			if verdict != nil {
				return verdict
			}
			return err
		case <-stop:
			verdict = errStopped
		case <-deadline:
			verdict = fmt.Errorf("%w: it took over %g s", errBeyond, s.bounds.Seconds)
		case <-tick.C:
			count, bytes := usage()
			switch {
			case os.Getppid() != parent:
				verdict = errStopped
			case count > s.bounds.Processes:
				verdict = fmt.Errorf("%w: it had over %d processes", errBeyond, s.bounds.Processes)
			case bytes > s.bounds.MemoryBytes:
				verdict = fmt.Errorf("%w: it took over %d MiB of memory", errBeyond, s.bounds.MemoryBytes>>20)
			}
		}
		if verdict != nil {
			endAll(command.Process)
		}
	}
}

// In namespaces of its own where that is allowed: then its end is the end of all that it started, and there is no network. Nothing
// limits the number of root's processes, so root's programs run as another user.
func (s *supervised) start() (*exec.Cmd, error) {
	ways := []way{{alone: true}, {}}
	if user := otherUser(); user != 0 {
		if err := s.share(user); err != nil {
			return nil, err
		}
		// The last one is for containers that have a single user. The new process sees whether that one's processes can be limited.
		ways = []way{{alone: true, user: user}, {user: user}, {}}
	}
	var problem error
	for _, way := range ways {
		command, err := s.command(way)
		if err != nil {
			return nil, err
		}
		if problem = command.Start(); problem == nil {
			return command, nil
		}
	}
	return nil, problem
}

// How a program is started.
type way struct {
	alone bool
	// None: the own one.
	user int
}

func (s *supervised) command(way way) (*exec.Cmd, error) {
	text, err := json.Marshal(s.bounds)
	if err != nil {
		return nil, err
	}
	// Also for a user that can't get to where this program lies.
	command := exec.Command("/proc/self/exe", append([]string{confinedArgument, string(text)}, s.program...)...)
	command.Dir, command.Env = s.folder, s.environment
	command.Stdin, command.Stdout, command.Stderr = s.input, s.output, s.errors
	command.WaitDelay = time.Second
	attributes := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	user, group := os.Getuid(), os.Getgid()
	if way.user != 0 {
		user, group = way.user, way.user
		attributes.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(group)}
		attributes.GidMappingsEnableSetgroups = true
	}
	if way.alone {
		attributes.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: user, HostID: user, Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: group, HostID: group, Size: 1}}
	}
	command.SysProcAttr = attributes
	return command, nil
}

// In the new process, which then becomes the program.
func enter(arguments []string) int {
	runtime.LockOSThread()
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return exitNotBegun
	}
	var bounds bounds
	if len(arguments) < 2 {
		return exitUsage
	}
	if err := json.Unmarshal([]byte(arguments[0]), &bounds); err != nil {
		return fail(err)
	}
	program, err := exec.LookPath(arguments[1])
	if err != nil {
		return fail(err)
	}
	if program, err = filepath.Abs(program); err != nil {
		return fail(err)
	}
	own := []string{filepath.Dir(program)}
	// A link to it may lead elsewhere.
	if real, err := filepath.EvalSymlinks(program); err == nil {
		own = append(own, filepath.Dir(real))
	}
	read := landlock.RODirs(slices.Concat(own, systemFolders, bounds.Read)...).IgnoreIfMissing()
	files := landlock.ROFiles(systemFiles...).IgnoreIfMissing()
	devices := landlock.RWFiles("/dev/null", "/dev/zero", "/dev/full").IgnoreIfMissing()
	rules := []landlock.Rule{read, files, devices}
	if len(bounds.Write) > 0 {
		rules = append(rules, landlock.RWDirs(bounds.Write...))
	}
	if err := landlock.V11.BestEffort().Restrict(rules...); err != nil {
		return fail(err)
	}
	var families []seccomp.NameWithConditions
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET, unix.AF_VSOCK} {
		families = append(families, seccomp.NameWithConditions{
			Name:       "socket",
			Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: family}},
		})
	}
	deny(nil, nil, families)
	limit(unix.RLIMIT_CORE, 0)
	limit(unix.RLIMIT_NOFILE, 256)
	limit(unix.RLIMIT_FSIZE, bounds.FileBytes)
	_ = unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: bounds.CPUSeconds, Max: bounds.CPUSeconds + 1})
	// Who watches over it goes first, however many processes it becomes, and says so before the kernel's limit is reached.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
	if err := limitProcesses(2 * uint64(bounds.Processes)); err != nil {
		return fail(err)
	}
	limit(unix.RLIMIT_DATA, bounds.MemoryBytes)
	return fail(unix.Exec(program, arguments[1:], os.Environ()))
}

type process struct {
	pid, parent int
	// Since the machine was started, in ticks: another process with the same number has another.
	started uint64
	rss     uint64
}

// All processes that this one may see.
func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if found, there := look(pid); there {
			all = append(all, found)
		}
	}
	return all
}

func look(pid int) (process, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 22 {
		return process{}, false
	}
	parent, _ := strconv.Atoi(fields[1])
	started, _ := strconv.ParseUint(fields[19], 10, 64)
	rss, _ := strconv.ParseUint(fields[21], 10, 64)
	return process{pid, parent, started, rss * uint64(os.Getpagesize())}, true
}

// Its number may be another's by now, where processes come and go quickly; and then that one is left alone.
func (p process) signal(signal syscall.Signal) {
	file, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ENOSYS) {
		_ = syscall.Kill(p.pid, signal)
	}
	if err != nil {
		return
	}
	defer unix.Close(file)
	if now, there := look(p.pid); there && now.started == p.started {
		_ = unix.PidfdSendSignal(file, signal, nil, 0)
	}
}

// Those that this process started, and those that these did.
func descendants() []process {
	children := map[int][]process{}
	for _, process := range processes() {
		children[process.parent] = append(children[process.parent], process)
	}
	var found []process
	for pending := []int{os.Getpid()}; len(pending) > 0; pending = pending[1:] {
		for _, child := range children[pending[0]] {
			found, pending = append(found, child), append(pending, child.pid)
		}
	}
	return found
}

func usage() (count int, bytes uint64) {
	for _, process := range descendants() {
		count, bytes = count+1, bytes+process.rss
	}
	return count, bytes
}

// The first of its namespace takes all others with it. Without one they are stopped first, so that none is made while others go.
func endAll(first *os.Process) {
	_ = first.Kill()
	for round := 0; round < 100; round++ {
		left := descendants()
		for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, process := range left {
				process.signal(signal)
			}
		}
		running := 0
		for _, process := range left {
			// The first one is its waiter's.
			if process.pid != first.Pid {
				running++
				_, _ = syscall.Wait4(process.pid, nil, syscall.WNOHANG, nil)
			}
		}
		if running == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
