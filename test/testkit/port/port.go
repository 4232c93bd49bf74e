// Package port chooses TCP ports for servers that tests start as other processes.
//
// Such a server listens only some time after its port was chosen. A port that the kernel chooses
// can go to another socket meanwhile: to another test's server, or to an outgoing connection. This
// package's ports are outside of the range from which the kernel chooses.
package port

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Free ports are from first to last; net.ipv4.ip_local_port_range begins at 32768.
const (
	first = 10_000
	last  = 32_000
)

// next begins at a random place, so that test processes that run at the same time choose different
// ports.
var next atomic.Uint32

func init() { next.Store(rand.Uint32N(last - first)) }

// Loopback returns an address on the loopback, HOST:PORT, at which nothing listens. It returns no
// address twice, unless it has been called thousands of times.
func Loopback() (string, error) {
	var failed error
	for range 1000 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+int(next.Add(1)%(last-first))))
		l, err := net.Listen("tcp", address)
		if err == nil {
			return address, l.Close()
		}
		failed = err
	}
	return "", errors.Join(errors.New("no port is free"), failed)
}
