package main

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type state int

const (
	// Nobody knows: the answer to a write that would have told was lost.
	unsure state = iota
	absent
	present
	// It was deleted and has finalizers: it may be there, until it isn't.
	leaving
)

// What was told of an object by the last answers.
type belief struct {
	state state
	uid   types.UID
}

// What an answer or a list shows of an object. The uid is empty where it isn't told.
type sight struct {
	there   bool
	uid     types.UID
	leaving bool
}

type operation int

const (
	create operation = iota
	update
	remove
	read
)

func (o operation) String() string { return [...]string{"create", "update", "remove", "read"}[o] }

// How often each operation is chosen, in the order of their constants. Most make sense; some should be refused.
var chances = map[state][4]int{
	unsure:  {4, 4, 4, 4},
	absent:  {12, 2, 1, 1},
	present: {1, 10, 4, 1},
	leaving: {4, 4, 4, 4},
}

func seen(object metav1.Object) sight {
	return sight{there: true, uid: object.GetUID(), leaving: object.GetDeletionTimestamp() != nil}
}

// Nobody knows whether it happened: no answer, or the server says so.
func isLost(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// Nothing happened, and it may be tried again; client-go has done so ten times.
func isPutOff(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
}

// What is known after an operation, and what in its answer contradicts what was known before.
func (b belief) after(chosen operation, upserts bool, shown sight, err error) (belief, string) {
	switch {
	case err == nil:
		return b.afterSuccess(chosen, upserts, shown)
	case apierrors.IsAlreadyExists(err) && chosen == create:
		if b.state == absent {
			return belief{}, "it surely didn't exist, but the answer is: " + err.Error()
		}
		// Of what is unsure, this doesn't tell whether it is leaving.
		return b, ""
	case apierrors.IsNotFound(err) && (chosen == read || chosen == remove || chosen == update && !upserts):
		return sight{}.belief(), b.contradiction(sight{})
	case isPutOff(err):
		return b, ""
	case isLost(err) && !b.mayChange(chosen, upserts):
		return b, ""
	default:
		// What else is refused counts as a fault elsewhere.
		return belief{}, ""
	}
}

func (b belief) afterSuccess(chosen operation, upserts bool, shown sight) (belief, string) {
	before := shown
	switch {
	case chosen == create:
		before = sight{}
	case chosen == remove:
		before = sight{there: true, uid: shown.uid, leaving: b.state == leaving}
	case chosen == update && upserts && (b.state == absent || b.state == leaving && shown.uid != b.uid):
		before = sight{}
	}
	contradiction := b.contradiction(before)
	if contradiction == "" && b.state == absent && b.uid != "" && shown.uid == b.uid {
		contradiction = fmt.Sprintf("it was surely deleted, but came back with its uid %s", b.uid)
	}
	after := shown.belief()
	if after.state == absent {
		after.uid = b.uid
	}
	return after, contradiction
}

// Whether this operation, if it happened, decides over the object's existence.
func (b belief) mayChange(chosen operation, upserts bool) bool {
	switch chosen {
	case create:
		return b.state != present
	case update:
		return upserts && b.state != present
	case remove:
		return b.state == present
	default:
		return false
	}
}

func (b belief) contradiction(s sight) string {
	switch {
	case b.state == present && !s.there:
		return fmt.Sprintf("it surely existed (uid %s), but is lost", b.uid)
	case b.state == absent && s.there:
		return fmt.Sprintf("it surely didn't exist, but is there (uid %s)", s.uid)
	case (b.state == present || b.state == leaving) && s.uid != "" && s.uid != b.uid:
		return fmt.Sprintf("it surely existed with uid %s, but now has %s", b.uid, s.uid)
	case b.state == present && s.leaving:
		return "it is being deleted, but nobody asked for that"
	case b.state == leaving && s.uid != "" && !s.leaving:
		return "it was being deleted, but no longer is"
	}
	return ""
}

func (s sight) belief() belief {
	switch {
	case !s.there:
		return belief{state: absent}
	case s.leaving:
		return belief{state: leaving, uid: s.uid}
	default:
		return belief{state: present, uid: s.uid}
	}
}
