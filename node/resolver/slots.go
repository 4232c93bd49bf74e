package resolver

import "time"

// slots bounds the number of indexes that are fetched at a time, and how long a slow index delays
// others. Each channel has one value per index.
type slots struct {
	regular chan struct{} // indexes within their slotTime
	late    chan struct{} // indexes that took longer, and have given their slots to others
}

func newSlots() slots {
	return slots{regular: make(chan struct{}, maxFetches), late: make(chan struct{}, maxLate)}
}

// acquire waits for a slot until giveUp is closed. The caller calls release when its index has
// arrived or failed.
func (s slots) acquire(giveUp <-chan struct{}) (release func(), ok bool) {
	select {
	case s.regular <- struct{}{}:
	case <-giveUp:
		return nil, false
	}
	done := make(chan struct{})
	go s.watch(done)
	return func() { close(done) }, true
}

// watch frees a slot when its index is done, or after slotTime if fewer than maxLate others are
// late.
func (s slots) watch(done <-chan struct{}) {
	timer := time.NewTimer(slotTime)
	defer timer.Stop()
	select {
	case <-done:
		<-s.regular
		return
	case <-timer.C:
	}
	select {
	case <-done:
		<-s.regular
	case s.late <- struct{}{}:
		<-s.regular
		<-done
		<-s.late
	}
}
