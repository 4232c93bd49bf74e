// Package port chooses TCP ports for servers that tests start as other processes.
//
// Such a server begins to listen some time after its port was chosen. If the kernel has chosen the
// port, the kernel can meanwhile choose it for another socket, too: for another test's server, or
// for an outgoing connection. This package's ports are outside of the kernel's range.
package port

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Ports are at least lowest and less than end. The kernel's range (net.ipv4.ip_local_port_range)
// begins at 32768 by default.
const (
	lowest = 10_000
	end    = 32_000
)

// next counts the ports that were tried. It begins at a random number, so that test processes that
// run at the same time choose different ports.
var next atomic.Uint32

func init() { next.Store(rand.Uint32N(end - lowest)) }

// Loopback returns an address on the loopback, HOST:PORT, at which nothing listens. A process gets
// no address twice before it has tried all ports.
func Loopback() (string, error) {
	var failed error
	for range 1000 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(lowest+int(next.Add(1)%(end-lowest))))
		l, err := net.Listen("tcp", address)
		if err == nil {
			return address, l.Close()
		}
		failed = err
	}
	return "", errors.Join(errors.New("find a free port: none of 1000 ports can be used"), failed)
}
