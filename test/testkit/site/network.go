package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/link"
)

// newNetwork starts a process that holds a new network namespace.
func (s *Site) newNetwork(ctx context.Context, name string) (*process, error) {
	holder, err := s.startProcess(name, []string{"unshare", "--net", "sleep", "infinity"})
	if err != nil {
		return nil, err
	}
	err = holder.await(ctx, func() error {
		ours, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			return err
		}
		theirs, err := os.Readlink(networkOf(holder.pid()))
		if err == nil && theirs == ours {
			err = errors.New("the process has no network namespace of its own yet")
		}
		return err
	})
	return holder, err
}

// networkOf returns the path of a process's network namespace.
func networkOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// insideOf returns the command line that runs line in the network namespace that holder holds.
func insideOf(holder *process, line string) string {
	return "nsenter --net=" + networkOf(holder.pid()) + " " + line
}

// makeLink makes the link to the machine and, if Options.Delayed is set, the proxy that delays it.
//
// With Options.Delayed, the link ends in the router's namespace, where only the proxy listens, on
// the hub's address. The enclosure's namespace has the same address on lo. So programs there reach
// the hub and the registry directly, while the machine reaches them only through the proxy.
func (s *Site) makeLink(ctx context.Context, m *Machine) error {
	here := s.linkName()
	lines := []string{
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", here, m.holder.pid()),
		m.inside("ip link set eth0 addrgenmode none"), // no IPv6: neighbour discovery would be counted in Bytes
		m.inside("ip addr add " + MachineIP + "/30 dev eth0"),
		m.inside("ip link set eth0 up"),
		m.inside("ip link set lo up"),
	}
	if s.options.Delayed {
		var err error
		if s.router, err = s.newNetwork(ctx, "router"); err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("ip link set %s netns %d", here, s.router.pid()),
			"ip addr add "+HubIP+"/32 dev lo")
	}
	lines = append(lines, s.hubSide("ip link set "+here+" addrgenmode none"),
		s.hubSide("ip addr add "+HubIP+"/30 dev "+here), s.hubSide("ip link set "+here+" up"))
	if err := errors.Join(s.commands(ctx, lines...), s.shape(ctx, m, s.options.Link)); err != nil ||
		!s.options.Delayed {
		return err
	}
	s.proxy = link.New(0)
	for _, port := range []string{registryPort, hubPort, secondHubPort} {
		listener, err := listenIn(s.router.pid(), net.JoinHostPort(HubIP, port))
		if err != nil {
			return err
		}
		s.proxy.Forward(listener, net.JoinHostPort(HubIP, port))
	}
	return nil
}

// linkName returns the name of the link's interface on the hub's side.
func (s *Site) linkName() string { return "lighter" + filepath.Base(s.Dir) }

// hubSide returns the command line that runs line in the network namespace of the link's interface
// on the hub's side.
func (s *Site) hubSide(line string) string {
	if s.router == nil {
		return line
	}
	return insideOf(s.router, line)
}

// shape sets the link's rate in both directions.
func (s *Site) shape(ctx context.Context, m *Machine, rate string) error {
	bits, err := ParseRate(rate)
	if err != nil {
		return err
	}
	// The burst of 128 KiB has room for the 64 KB that the kernel sends at once. A much larger
	// burst would make short transfers faster than the link. The queue is limited to the bytes that
	// the link sends in 25 ms, or to 256 KiB if that is more: enough for TCP to keep the link busy
	// without loss.
	shape := fmt.Sprintf(" root tbf rate %s burst 128k limit %d", rate, max(int64(256<<10), bits/8/40))
	return s.commands(ctx, s.hubSide("tc qdisc replace dev "+s.linkName()+shape),
		m.inside("tc qdisc replace dev eth0"+shape))
}

// ParseRate parses a rate in tc's notation (100mbit, 1gbit) and returns bits a second.
func ParseRate(rate string) (int64, error) {
	for unit, times := range map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9} {
		if number, ok := strings.CutSuffix(rate, unit); ok {
			if n, err := strconv.ParseFloat(number, 64); err == nil && n > 0 {
				return int64(n * times), nil
			}
		}
	}
	return 0, fmt.Errorf("parse the link's rate %q: want a number with kbit, mbit or gbit", rate)
}

// SetLink changes the link's rate, in tc's notation, and its round-trip time. It needs
// Options.Delayed. Bytes in flight keep the previous round-trip time.
func (s *Site) SetLink(ctx context.Context, rate string, rtt time.Duration) error {
	if s.proxy == nil {
		return errors.New("change the link: Options.Delayed is not set")
	}
	if err := s.SetRate(ctx, rate); err != nil {
		return err
	}
	s.proxy.SetRTT(rtt)
	return nil
}

// SetRate changes the link's rate, in tc's notation.
func (s *Site) SetRate(ctx context.Context, rate string) error {
	if err := s.shape(ctx, s.Machine, rate); err != nil {
		return fmt.Errorf("change the link: %w", err)
	}
	return nil
}

func (s *Site) closeLink() error {
	if s.proxy != nil {
		s.proxy.Close()
	}
	return s.router.stop()
}

// inNetwork calls fn in the network namespace of a process. Sockets that fn makes stay in that
// namespace. fn must not start goroutines that make sockets.
func inNetwork(pid int, fn func() error) error {
	theirs, err := os.Open(networkOf(pid))
	if err != nil {
		return err
	}
	defer theirs.Close()
	ours, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer ours.Close()
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
			failed <- fmt.Errorf("enter the network of process %d: %w", pid, err)
			return // the thread ends with the goroutine
		}
		err := fn()
		if back := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
		failed <- err
	}()
	return <-failed
}

// listenIn opens a TCP listener in the network namespace of a process.
func listenIn(pid int, address string) (listener net.Listener, err error) {
	err = inNetwork(pid, func() (err error) { listener, err = net.Listen("tcp", address); return err })
	return listener, err
}

// dialIn opens a TCP connection in the network namespace of a process.
func dialIn(ctx context.Context, pid int, address string) (conn net.Conn, err error) {
	err = inNetwork(pid, func() (err error) {
		conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}
