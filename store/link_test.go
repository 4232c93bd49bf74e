package store

import (
	"testing"
	"time"
)

// The source's RTT counts until the first RTT was measured. Until startup ends, the estimated
// bandwidth is not below the source's. If the first RTT shows another path, the source's bandwidth
// counts as at most defaultBandwidth. Neither counts again if startup begins again.
func TestPriorEstimateIsForgotten(t *testing.T) {
	const rtt, fromSource, measured = 50 * time.Millisecond, 1e9, 1e6
	timed := func(l *link, rtt time.Duration) {
		var c transfer
		l.begin(&c, 1000)
		l.firstByte(&c, 1000, rtt, true)
		l.end(&c)
	}
	var other link
	other.assume(rtt/50, fromSource)
	if other.roundTrip() != rtt/50 || other.bandwidth() != fromSource {
		t.Errorf("prior estimate: got %v and %v, want %v and %v",
			other.roundTrip(), other.bandwidth(), rtt/50, fromSource)
	}
	timed(&other, rtt)
	other.assume(rtt/50, fromSource)
	if other.roundTrip() != rtt || other.bandwidth() != defaultBandwidth {
		t.Errorf("on another path: got %v and %v, want %v and %v",
			other.roundTrip(), other.bandwidth(), rtt, defaultBandwidth)
	}
	for source, want := range map[float64]float64{measured: minPriorBDP / rtt.Seconds(), 2e7: 2e7} {
		var shared link
		shared.assume(rtt/50, source)
		timed(&shared, rtt)
		if shared.roundTrip() != rtt || shared.bandwidth() != want {
			t.Errorf("on a shared path: got %v and %v, want %v and %v",
				shared.roundTrip(), shared.bandwidth(), rtt, want)
		}
	}
	for name, end := range map[string]func(l *link){
		"no growth": func(l *link) {
			for range flatSamples {
				l.addSample(measured, true)
			}
		},
		"late RTTs": func(l *link) {
			for range lateRTTs {
				timed(l, 2*rtt)
			}
		},
	} {
		var l link
		l.assume(rtt, fromSource)
		timed(&l, rtt)
		l.addSample(measured, true)
		if l.bandwidth() != fromSource {
			t.Errorf("%s: during startup got a bandwidth of %v, want %v", name, l.bandwidth(), fromSource)
		}
		end(&l)
		if l.inStartup() || l.bandwidth() != measured {
			t.Errorf("%s: after startup got startup %v, bandwidth %v; want false, %v",
				name, l.inStartup(), l.bandwidth(), measured)
		}
		l.addSample(2*measured, true)
		if !l.inStartup() || l.bandwidth() != defaultBandwidth {
			t.Errorf("%s: after growth got startup %v, bandwidth %v; want true, %v",
				name, l.inStartup(), l.bandwidth(), defaultBandwidth)
		}
	}
}
