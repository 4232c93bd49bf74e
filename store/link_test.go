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
		var c transfer
		l.begin(&c, 1000)
		l.firstByte(&c, 1000, trip, true)
		l.end(&c)
	}
	var other link
	other.assume(trip/50, seen)
	if other.roundTrip() != trip/50 || other.bandwidth() != seen {
		t.Errorf("supposed were %v and %v", other.roundTrip(), other.bandwidth())
	}
	timed(&other, trip)
	other.assume(trip/50, seen)
	if other.roundTrip() != trip || other.bandwidth() != defaultBandwidth {
		t.Errorf("of another way %v and %v are taken for granted", other.roundTrip(), other.bandwidth())
	}
	for supposed, counts := range map[float64]float64{carried: minPriorBDP / trip.Seconds(), 2e7: 2e7} {
		var shared link
		shared.assume(trip/50, supposed)
		timed(&shared, trip)
		if shared.roundTrip() != trip || shared.bandwidth() != counts {
			t.Errorf("of a link that many have %v and %v are taken for granted", shared.roundTrip(), shared.bandwidth())
		}
	}
	for name, end := range map[string]func(l *link){
		"it no longer grows": func(l *link) {
			for range flatSamples {
				l.addSample(carried, true)
			}
		},
		"it is late": func(l *link) {
			for range lateRTTs {
				timed(l, 2*trip)
			}
		},
	} {
		var l link
		l.assume(trip, seen)
		timed(&l, trip)
		l.addSample(carried, true)
		if l.bandwidth() != seen {
			t.Errorf("%s: %v is known before the end of the beginning", name, l.bandwidth())
		}
		end(&l)
		if l.inStartup() || l.bandwidth() != carried {
			t.Errorf("%s: it is new: %v, and carries %v", name, l.inStartup(), l.bandwidth())
		}
		l.addSample(2*carried, true)
		if !l.inStartup() || l.bandwidth() != defaultBandwidth {
			t.Errorf("%s: it is new again: %v, and carries %v", name, l.inStartup(), l.bandwidth())
		}
	}
}
