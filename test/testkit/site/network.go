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

// newNetwork starts a process that keeps a network namespace of its own.
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
		its, err := os.Readlink(networkOf(holder.pid()))
		if err == nil && its == ours {
			err = errors.New("it has no network namespace yet")
		}
		return err
	})
	return holder, err
}

// networkOf is the file of a process's network namespace.
func networkOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

func insideOf(holder *process, line string) string {
	return "nsenter --net=" + networkOf(holder.pid()) + " " + line
}

// makeLink makes the link to the machine, and what delays it.
//
// Delayed, the link ends in a namespace where nothing listens but the proxy, at the
// hub's address, which the enclosure has too: so what is in the enclosure reaches
// the hub and the registry at once, and what the machine sends has no other way.
func (s *Site) makeLink(ctx context.Context, m *Machine) error {
	here := s.linkName()
	lines := []string{
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", here, m.holder.pid()),
		m.inside("ip link set eth0 addrgenmode none"), // no IPv6: its neighbour discovery would be counted among the bytes
		m.inside("ip addr add " + machineIP + "/30 dev eth0"),
		m.inside("ip link set eth0 up"),
		m.inside("ip link set lo up"),
	}
	if s.options.Delayed {
		var err error
		if s.router, err = s.newNetwork(ctx, "router"); err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("ip link set %s netns %d", here, s.router.pid()), "ip addr add "+HubIP+"/32 dev lo")
	}
	lines = append(lines, s.farEnd("ip link set "+here+" addrgenmode none"), s.farEnd("ip addr add "+HubIP+"/30 dev "+here), s.farEnd("ip link set "+here+" up"))
	if err := errors.Join(s.commands(ctx, lines...), s.shape(ctx, m, s.options.Link)); err != nil || !s.options.Delayed {
		return err
	}
	s.delay = link.New(0)
	for _, port := range []string{registryPort, hubPort, secondHubPort} {
		listener, err := listenIn(s.router.pid(), net.JoinHostPort(HubIP, port))
		if err != nil {
			return err
		}
		s.delay.Forward(listener, net.JoinHostPort(HubIP, port))
	}
	return nil
}

// linkName is the name of the link's end that is not the machine's.
func (s *Site) linkName() string { return "lighter" + filepath.Base(s.Dir) }

// farEnd is the command line that runs line where that end is.
func (s *Site) farEnd(line string) string {
	if s.router == nil {
		return line
	}
	return insideOf(s.router, line)
}

// shape gives the link its rate, both ways.
func (s *Site) shape(ctx context.Context, m *Machine, rate string) error {
	bits, err := ParseRate(rate)
	if err != nil {
		return err
	}
	// The burst is what passes unhindered after a pause. It must hold the 64 KB that the kernel
	// hands over at once; a bigger one would make short transfers faster than the link. The limit
	// is a queue of some 25 ms: TCP keeps the link full and loses nothing.
	shape := fmt.Sprintf(" root tbf rate %s burst 128k limit %d", rate, max(int64(256<<10), bits/8/40))
	return s.commands(ctx, s.farEnd("tc qdisc replace dev "+s.linkName()+shape), m.inside("tc qdisc replace dev eth0"+shape))
}

// ParseRate reads a rate as tc writes it, in bits a second: 100mbit, 1gbit.
func ParseRate(rate string) (int64, error) {
	for unit, times := range map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9} {
		if number, ok := strings.CutSuffix(rate, unit); ok {
			if n, err := strconv.ParseFloat(number, 64); err == nil && n > 0 {
				return int64(n * times), nil
			}
		}
	}
	return 0, fmt.Errorf("%q is not the rate of a link: write 100mbit or 1gbit", rate)
}

// SetLink changes the link's rate, as tc writes it, and its round-trip time, which
// needs Options.Delayed. What is on its way keeps the former one.
func (s *Site) SetLink(ctx context.Context, rate string, rtt time.Duration) error {
	if s.delay == nil {
		return errors.New("change the link: the site has none with a delay")
	}
	if err := s.shape(ctx, s.Machine, rate); err != nil {
		return fmt.Errorf("change the link: %w", err)
	}
	s.delay.SetRTT(rtt)
	return nil
}

func (s *Site) closeLink() error {
	if s.delay != nil {
		s.delay.Close()
	}
	return s.router.stop()
}

// inNetwork calls fn, which must not start goroutines that make sockets, in the
// network namespace of a process: a socket stays where it was made.
func inNetwork(pid int, fn func() error) error {
	its, err := os.Open(networkOf(pid))
	if err != nil {
		return err
	}
	defer its.Close()
	ours, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer ours.Close()
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(its.Fd()), unix.CLONE_NEWNET); err != nil {
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

// listenIn listens in the network namespace of a process.
func listenIn(pid int, address string) (listener net.Listener, err error) {
	err = inNetwork(pid, func() (err error) { listener, err = net.Listen("tcp", address); return err })
	return listener, err
}

// dialIn connects in the network namespace of a process.
func dialIn(ctx context.Context, pid int, address string) (conn net.Conn, err error) {
	err = inNetwork(pid, func() (err error) {
		conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}
