package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Users that nobody is: between those of packages and those of systemd's own making, and there in most containers that have users of
// their own.
const (
	firstUser = 60578
	users     = 600
)

// Whom programs run as that root starts; none where this isn't root.
func otherUser() int {
	if os.Geteuid() != 0 && os.Getuid() != 0 {
		return 0
	}
	return firstUser + os.Getpid()%users
}

// Lets the other user read what was made for this run, and write where that is meant.
func (s *supervised) share(user int) error {
	if s.bounds.Place == "" {
		return nil
	}
	for folder := filepath.Dir(s.bounds.Place); ; folder = filepath.Dir(folder) {
		info, err := os.Stat(folder)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&1 == 0 {
			return fmt.Errorf("root's plugins run as another user, who can't pass through %s; run it as a user that is not root, or set TMPDIR to a folder that others may pass through", folder)
		}
		if folder == filepath.Dir(folder) {
			break
		}
	}
	readable := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			err = os.Lchown(path, -1, user)
		}
		if err == nil {
			// What the owner may read or start, the group may too.
			err = os.Chmod(path, info.Mode().Perm()|info.Mode().Perm()&0o500>>3)
		}
		return err
	}
	owned := func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, user, user)
	}
	if err := filepath.WalkDir(s.bounds.Place, readable); err != nil {
		return err
	}
	for _, folder := range s.bounds.Write {
		if err := filepath.WalkDir(folder, owned); err != nil {
			return err
		}
	}
	return nil
}

const (
	// More than any kernel has.
	mostProcesses = 1 << 22
	// How exactly it is found how many there are.
	roughly = uint64(16)
)

var errUnlimited = errors.New("nothing limits the number of this user's processes (it is root, or has CAP_SYS_RESOURCE), and no other user could be taken; run it as a user that is not root")

// Has the kernel refuse more than so many processes beyond those that the user has. The user's others count, also those that can't be
// seen from here, so how many there are is found by trying; and that there is a limit, too.
func limitProcesses(more uint64) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &before); err != nil {
		return err
	}
	hard := before.Max
	isEnough := func(most uint64) (bool, error) {
		err := tryProcess(most, hard)
		if errors.Is(err, unix.EAGAIN) {
			return false, nil
		}
		return err == nil, err
	}
	if unlimited, err := isEnough(0); err != nil {
		return err
	} else if unlimited {
		return errUnlimited
	}
	tooFew, enough := uint64(0), min(roughly, hard)
	for {
		found, err := isEnough(enough)
		if err != nil {
			return err
		}
		if found {
			break
		}
		if enough == hard || enough > mostProcesses {
			return fmt.Errorf("this user may have no more processes than it has, over %d", tooFew)
		}
		tooFew, enough = enough, min(2*enough, hard)
	}
	for enough-tooFew > roughly {
		middle := tooFew + (enough-tooFew)/2
		found, err := isEnough(middle)
		if err != nil {
			return err
		}
		if found {
			enough = middle
		} else {
			tooFew = middle
		}
	}
	most := min(enough+more, hard)
	return unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: most})
}

// Makes a process that ends at once, with a limit that holds for nothing else that is done here.
func tryProcess(most, hard uint64) error {
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: hard}); err != nil {
		return err
	}
	// Nothing may come between that has Go start a thread, neither here nor in the new process.
	pid, _, number := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if number == 0 && pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: hard, Max: hard}); err != nil {
		return err
	}
	if number != 0 {
		return number
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return err
}
