package resolver

import "time"

const (
	// maxFetches bounds the indexes that arrive in their turn: each takes several
	// megabytes to decompress, and few of them fill the link.
	maxFetches = 4
	// turnTime is the length of a turn. An index that takes longer, because it is large or its
	// origin slow, passes its turn on and goes on without. maxLate bounds the number of these.
	turnTime = 5 * time.Second
	maxLate  = 12
)

// turns bounds the number of indexes that arrive at a time, and how long a slow one delays others.
// Each channel holds one value for each index.
type turns struct {
	now  chan struct{} // indexes in their turn
	late chan struct{} // indexes that have passed their turn on
}

func newTurns() turns {
	return turns{now: make(chan struct{}, maxFetches), late: make(chan struct{}, maxLate)}
}

// take waits for a turn until giveUp is closed. The caller calls end when its index has arrived or
// failed.
func (t turns) take(giveUp <-chan struct{}) (end func(), ok bool) {
	select {
	case t.now <- struct{}{}:
	case <-giveUp:
		return nil, false
	}
	ended := make(chan struct{})
	go t.pass(ended)
	return func() { close(ended) }, true
}

// pass gives a turn back when its index has ended, or after turnTime if fewer than maxLate others
// are late.
func (t turns) pass(ended <-chan struct{}) {
	over := time.NewTimer(turnTime)
	defer over.Stop()
	select {
	case <-ended:
		<-t.now
		return
	case <-over.C:
	}
	select {
	case <-ended:
		<-t.now
	case t.late <- struct{}{}:
		<-t.now
		<-ended
		<-t.late
	}
}
