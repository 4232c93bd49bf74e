package store

import (
	"testing"
	"time"
)

// The source's own estimate counts until the link has measured: the RTT until one was measured, the
// bandwidth until the RTT shows another path, or startup ends. It does not count again when startup
// begins anew.
func TestPriorEstimateIsForgotten(t *testing.T) {
	const rtt, seen, carried = 50 * time.Millisecond, 1e9, 1e6
	timed := func(l *link, rtt time.Duration) {
		var c transfer
		l.begin(&c, 1000)
		l.firstByte(&c, 1000, rtt, true)
		l.end(&c)
	}
	var other link
	other.assume(rtt/50, seen)
	if other.roundTrip() != rtt/50 || other.bandwidth() != seen {
		t.Errorf("prior estimate: got %v and %v", other.roundTrip(), other.bandwidth())
	}
	timed(&other, rtt)
	other.assume(rtt/50, seen)
	if other.roundTrip() != rtt || other.bandwidth() != defaultBandwidth {
		t.Errorf("on another path: got %v and %v", other.roundTrip(), other.bandwidth())
	}
	for supposed, counts := range map[float64]float64{carried: minPriorBDP / rtt.Seconds(), 2e7: 2e7} {
		var shared link
		shared.assume(rtt/50, supposed)
		timed(&shared, rtt)
		if shared.roundTrip() != rtt || shared.bandwidth() != counts {
			t.Errorf("on a shared path: got %v and %v", shared.roundTrip(), shared.bandwidth())
		}
	}
	for name, end := range map[string]func(l *link){
		"no growth": func(l *link) {
			for range flatSamples {
				l.addSample(carried, true)
			}
		},
		"late RTTs": func(l *link) {
			for range lateRTTs {
				timed(l, 2*rtt)
			}
		},
	} {
		var l link
		l.assume(rtt, seen)
		timed(&l, rtt)
		l.addSample(carried, true)
		if l.bandwidth() != seen {
			t.Errorf("%s: during startup got a bandwidth of %v", name, l.bandwidth())
		}
		end(&l)
		if l.inStartup() || l.bandwidth() != carried {
			t.Errorf("%s: after startup got startup %v, bandwidth %v", name, l.inStartup(), l.bandwidth())
		}
		l.addSample(2*carried, true)
		if !l.inStartup() || l.bandwidth() != defaultBandwidth {
			t.Errorf("%s: after growth got startup %v, bandwidth %v", name, l.inStartup(), l.bandwidth())
		}
	}
}
