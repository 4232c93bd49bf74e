package chain

import "time"

const (
	// maxFetches bounds the indexes that arrive in their turn: each takes several
	// megabytes to decompress, and few of them fill the link.
	maxFetches = 4
	// turnTime is how long a turn is. An index that takes longer, because it is large or its
	// origin slow, passes its turn on and goes on beside the others, of which there are maxLate.
	turnTime = 5 * time.Second
	maxLate  = 12
)

// turns has few indexes arrive at a time, and none of them hold up the others for long. Its channels
// hold a value for each index that arrives.
type turns struct {
	now  chan struct{} // in their turn
	late chan struct{} // that have passed it on
}

func newTurns() turns {
	return turns{now: make(chan struct{}, maxFetches), late: make(chan struct{}, maxLate)}
}

// take waits for a turn until giveUp is closed. An index that has arrived, or does not, calls end.
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

// pass gives a turn back when it has ended, or is over and there is room for one more beside.
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
