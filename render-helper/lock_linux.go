package main

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	landlocksys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Gives up files, sockets and other programs, for good. What the kernel can't do is left out, and told in the first message: templates
// have no function that needs any of it, so this is the second wall.
func lock() confinement {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// If the machine runs out of memory this goes first, and not who asked.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	addressesAtStart = addresses()
	limit(unix.RLIMIT_CORE, 0)
	limit(unix.RLIMIT_FSIZE, 0)
	limit(unix.RLIMIT_NOFILE, 64)
	var done confinement
	if abi, err := landlocksys.LandlockGetABIVersion(); err == nil {
		if err := landlock.V11.BestEffort().Restrict(); err == nil {
			done.Landlock = abi
		}
	}
	done.Seccomp = deny(
		[]string{
			// No sockets.
			"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "sendto", "sendmsg", "sendmmsg",
			// No files, also where the kernel has no Landlock.
			"open", "openat", "openat2", "open_by_handle_at", "creat", "mkdir", "mkdirat", "unlink", "unlinkat", "rename", "renameat",
			"renameat2", "link", "linkat", "symlink", "symlinkat", "chmod", "fchmodat", "chown", "fchownat", "truncate", "mknod", "mknodat",
			// No programs.
			"execve", "execveat", "fork", "vfork",
		},
		// Its flags can't be looked at. The C library, where this program is built with it, then takes clone.
		[]string{"clone3"},
		// Threads only.
		[]seccomp.NameWithConditions{{
			Name:       "clone",
			Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsNotSet, Value: unix.CLONE_THREAD}},
		}},
	)
	return done
}

// What nothing that renders needs, of the kernel's more dangerous corners.
var neverNeeded = []string{
	"ptrace", "process_vm_readv", "process_vm_writev", "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "bpf",
	"perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key", "request_key",
	"kexec_load", "init_module", "finit_module", "delete_module", "fsopen", "fsmount", "move_mount", "open_tree", "swapon", "reboot",
}

// Has the kernel answer EPERM to these from now on, and ENOSYS to those that it shall seem not to have.
func deny(names, absent []string, conditional []seccomp.NameWithConditions) bool {
	info, err := arch.GetInfo("")
	if err != nil || !seccomp.Supported() {
		return false
	}
	// Each processor's kernel has its own.
	unknown := func(name string) bool {
		_, there := info.SyscallNames[name]
		return !there
	}
	groups := []seccomp.SyscallGroup{{
		Action:             seccomp.ActionErrno,
		Names:              slices.DeleteFunc(append(names, neverNeeded...), unknown),
		NamesWithCondtions: conditional,
	}}
	if absent = slices.DeleteFunc(absent, unknown); len(absent) > 0 {
		groups = append(groups, seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: absent})
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: groups}
	return seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: policy}) == nil
}

func limit(resource int, most uint64) {
	_ = unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most})
}

// What this program has of addresses before the first request, most of which it never uses; 0 where that isn't known, or where it
// starts others, who would have the limit too.
var addressesAtStart uint64

func addresses() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _, _ := strings.Cut(string(text), " ")
	count, err := strconv.ParseUint(pages, 10, 64)
	if err != nil {
		return 0
	}
	return count * uint64(os.Getpagesize())
}

// What may be in memory of the addresses that there are at the start: 64 MiB of heap, as Go reserves it, and some 20 MiB of this program
// itself.
const presentAtStart = 84 << 20

// Of this request: time of the processor is counted from now on, memory for the process as a whole.
func limitProcess(limits limits) {
	switch {
	case limits.MemoryBytes == 0:
	case addressesAtStart > 0:
		// What has no address is not in memory. The kernel counts RLIMIT_DATA only where addresses are taken, and Go's heap takes them before
		// it says that it will write there.
		room := max(limits.MemoryBytes, presentAtStart) - presentAtStart
		_ = unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: addressesAtStart + room, Max: unix.RLIM_INFINITY})
	default:
		_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limits.MemoryBytes, Max: unix.RLIM_INFINITY})
	}
	if limits.CPUSeconds > 0 {
		var usage unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
		used := uint64(usage.Utime.Sec + usage.Stime.Sec)
		endBySignal(unix.SIGXCPU)
		_ = unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: used + 1 + limits.CPUSeconds, Max: unix.RLIM_INFINITY})
	}
}

// Go's run time takes every signal, and of most of them no notice: with this one the kernel ends the process again.
func endBySignal(signal unix.Signal) {
	// A sigaction of zeros on every architecture: the default, no flags, an empty mask of 8 bytes.
	var action [32]byte
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}
