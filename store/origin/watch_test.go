package origin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"lighter/wire"
	"lighter/wire/client"
)

// Callers wait longer for origins that send something, up to a limit.
func TestWatch(t *testing.T) {
	const silent, longest = time.Second, 20 * time.Second
	for name, c := range map[string]struct {
		heard []time.Duration // when bytes arrive, since the beginning
		end   time.Duration
		why   string
	}{
		"nothing ever arrived": {nil, silent, "no answer within 1s"},
		"nothing for long":     {[]time.Duration{-time.Minute}, silent, "no answer within 1s"},
		"others were answered": {[]time.Duration{-2 * time.Second}, grace - 2*time.Second,
			"no more bytes within 10s"},
		"it takes the connection": {[]time.Duration{silent / 2}, silent/2 + grace, "no more bytes within 10s"},
		"too late":                {[]time.Duration{silent + 1}, silent, "no answer within 1s"},
		"it trickles, and stops": {[]time.Duration{silent / 2, 5 * time.Second, 9 * time.Second},
			9*time.Second + grace, "no more bytes within 10s"},
		"it trickles": {[]time.Duration{silent / 2, 5 * time.Second, 14 * time.Second, 21 * time.Second},
			longest, "not complete within 20s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				heard := func() (last time.Time) {
					for _, at := range c.heard {
						if at := begin.Add(at); !at.After(time.Now()) {
							last = at
						}
					}
					return last
				}
				gaveUp := make(chan error)
				defer Watch(heard, silent, longest, func(why error) { gaveUp <- why })()
				if why := <-gaveUp; time.Since(begin) != c.end || why.Error() != c.why {
					t.Errorf("gave up after %s: %v; want %s: %s", time.Since(begin), why, c.end, c.why)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		never := func() time.Time { return time.Time{} }
		stop := Watch(never, silent, longest, func(why error) { t.Errorf("gave up after stop: %v", why) })
		stop()
		stop()
		time.Sleep(2 * longest)
	})
	synctest.Test(t, func(t *testing.T) { // stop is called after heard, before giveUp
		stops := make(chan func(), 1)
		heard := func() time.Time {
			(<-stops)()
			return time.Time{}
		}
		stops <- Watch(heard, 0, longest, func(why error) { t.Errorf("gave up after stop: %v", why) })
	})
}

// unreachable returns the URL of a hub that neither accepts nor refuses connections.
func unreachable(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	loopback := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err := errors.Join(unix.Bind(fd, loopback), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for range 10 { // fill its backlog
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return "http://" + address
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("the backlog does not fill")
	return ""
}

// known answers a lookup after a while, byte by byte.
func known(after time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		time.Sleep(after)
		b, _ := json.Marshal(wire.Chain{Complete: true})
		for i := range b {
			_, _ = w.Write(b[i : i+1])
			_ = http.NewResponseController(w).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func mute(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }

// A lookup waits for a slow hub, but neither for an unreachable hub nor for a hub that is known to
// hang.
func TestLookupOfASlowHub(t *testing.T) {
	const short = 100 * time.Millisecond
	s := origins(t, known(3*short))
	s.timeout.lookup = short
	if answer, err := s.Chain(t.Context(), ""); err != nil || !answer.Complete || !s.Health()[0].Up {
		t.Errorf("a slow hub: got %v, %+v; want an answer, and a hub that is up", err, s.Health())
	}
	if s.LastReceived().IsZero() {
		t.Error("LastReceived of a hub that answered is zero")
	}
	s = over(t, unreachable(t))
	s.timeout.lookup = short
	_, err := s.Chain(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), s.URL()+": no answer within 100ms") || s.Health()[0].Up {
		t.Errorf("an unreachable hub: got %v, %+v; want no answer within 100 ms, and a hub that is down",
			err, s.Health())
	}
	if !s.LastReceived().IsZero() {
		t.Error("LastReceived of an unreachable hub is not zero")
	}
	s = origins(t, mute)
	s.timeout.lookup = short
	s.all[0].down = true
	if _, err := s.Chain(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "no answer within 100ms") {
		t.Errorf("a hub that is known to hang: got %v, want no answer within 100 ms", err)
	}
	slow := known(3 * short)
	s = origins(t, func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.URL.Path, "/chains/") {
			slow(w, req)
		}
	})
	s.timeout.lookup = short
	if _, err := s.all[0].client.Keys(t.Context()); err == nil || s.all[0].dialer.received.at().IsZero() {
		t.Fatalf("an invalid key: got %v, want an error, and bytes received", err)
	}
	s.all[0].down = true
	if answer, err := s.Chain(t.Context(), ""); err != nil || !answer.Complete {
		t.Errorf("a hub that counts as down and has just answered another request: got %v, want an answer", err)
	}
	s = origins(t, mute, mute, known(0))
	s.timeout.lookup = 3 * short
	if answer, err := s.Chain(t.Context(), ""); err != nil || !answer.Complete || s.Health()[0].Up || s.Health()[1].Up {
		t.Errorf("a hub behind two silent ones: got %v, %+v; want an answer, and the first two down", err, s.Health())
	}
}

// A hub with Retry-After is asked again at that time, whatever the number of failures.
func TestRetryAfterEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := &client.Error{Status: http.StatusServiceUnavailable, RetryAfter: time.Second}
		f := newFakes(t, busy)
		for n := range 20 {
			var down *Unavailable
			if err := f.call(t, false); !errors.As(err, &down) || down.After != time.Second || f.asked[0] != n+1 {
				t.Errorf("got %d requests, %v; want %d, and a pause of 1s", f.asked[0], err, n+1)
			}
			time.Sleep(time.Second)
		}
	})
}
