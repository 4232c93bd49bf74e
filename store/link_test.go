package store

import (
	"testing"
	"time"
)

// What was seen of the way counts until the link itself has told: the trip until one was
// timed, the rate, if it is high, until that shows that it was another way, or it is known what the link carries. Then it
// is forgotten, also if more is to be found out later.
func TestWhatWasSeenIsForgotten(t *testing.T) {
	const trip, seen, carried = 50 * time.Millisecond, 1e9, 1e6
	timed := func(l *link, trip time.Duration) {
		var c crossing
		l.expect(&c, 1000)
		l.answer(&c, 1000, trip, true)
		l.end(&c)
	}
	var other link
	other.suppose(trip/50, seen)
	if other.roundTrip() != trip/50 || other.carries() != seen {
		t.Errorf("supposed were %v and %v", other.roundTrip(), other.carries())
	}
	timed(&other, trip)
	other.suppose(trip/50, seen)
	if other.roundTrip() != trip || other.carries() != firstRate {
		t.Errorf("of another way %v and %v are taken for granted", other.roundTrip(), other.carries())
	}
	for supposed, counts := range map[float64]float64{carried: leastHeld / trip.Seconds(), 2e7: 2e7} {
		var shared link
		shared.suppose(trip/50, supposed)
		timed(&shared, trip)
		if shared.roundTrip() != trip || shared.carries() != counts {
			t.Errorf("of a link that many have %v and %v are taken for granted", shared.roundTrip(), shared.carries())
		}
	}
	for name, end := range map[string]func(l *link){
		"it no longer grows": func(l *link) {
			for range flatSamples {
				l.learn(carried, true)
			}
		},
		"it is late": func(l *link) {
			for range lateTrips {
				timed(l, 2*trip)
			}
		},
	} {
		var l link
		l.suppose(trip, seen)
		timed(&l, trip)
		l.learn(carried, true)
		if l.carries() != seen {
			t.Errorf("%s: %v is known before the end of the beginning", name, l.carries())
		}
		end(&l)
		if l.isNew() || l.carries() != carried {
			t.Errorf("%s: it is new: %v, and carries %v", name, l.isNew(), l.carries())
		}
		l.learn(2*carried, true)
		if !l.isNew() || l.carries() != firstRate {
			t.Errorf("%s: it is new again: %v, and carries %v", name, l.isNew(), l.carries())
		}
	}
}
