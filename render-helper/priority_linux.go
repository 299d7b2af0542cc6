package main

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// A tenth of a processor that others want too, and all of one that nobody wants.
	nice = 10
	// Nanoseconds that a thread may go on for once another wants its processor; a render takes millions. Before 6.12 the kernel chooses by
	// itself, and longer.
	turn = 500_000
	// The shortest that there is.
	shortTurn = 100_000
)

// The threads of this process, of which the list is opened before [lock] takes that away.
var ownThreads, _ = os.Open("/proc/self/task")

// Lets no other wait for long, from the first request on.
func takeShortTurns() { eachThread(turn, 0) }

// Lets others go first, for as long as this process lives: the way back is not open to it.
func giveWay() { eachThread(shortTurn, nice) }

// Threads that are made later are as those that make them.
func eachThread(turn uint64, nice int32) {
	if ownThreads == nil {
		return
	}
	if _, err := ownThreads.Seek(0, io.SeekStart); err != nil {
		return
	}
	names, _ := ownThreads.Readdirnames(-1)
	for _, name := range names {
		thread, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// One that has ended meanwhile needs nothing.
		attributes, err := unix.SchedGetAttr(thread, 0)
		if err != nil || attributes.Policy != unix.SCHED_NORMAL {
			continue
		}
		attributes.Runtime = turn
		attributes.Nice = max(attributes.Nice, nice)
		_ = unix.SchedSetAttr(thread, attributes, 0)
	}
}
