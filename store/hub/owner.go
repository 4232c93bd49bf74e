package hub

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"lighter/proc"
)

// LocalKeys asks a hub on this machine for its public keys, and refuses one that neither
// root nor the user of this process runs: any user may listen on a port, or at a path that
// is in nobody's directory, before the hub does.
func (c *Client) LocalKeys(ctx context.Context) ([]ed25519.PublicKey, error) {
	if !c.Loopback() {
		return nil, fmt.Errorf("hub %s is not on this machine", c.URL())
	}
	var conn net.Conn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { conn = got.Conn }})
	return c.checkedKeys(ctx, func() error {
		uid, err := ownerOf(conn)
		if err != nil {
			return fmt.Errorf("hub %s: find out which user runs it: %w", c.URL(), err)
		}
		if uid != 0 && uid != os.Geteuid() {
			return fmt.Errorf("hub %s is run by user %d, neither by root nor by the node's own user", c.URL(), uid)
		}
		return nil
	})
}

// ownerOf returns the user of the process at the other end of a connection within this
// machine, which has answered on it.
func ownerOf(conn net.Conn) (uid int, err error) {
	switch c := conn.(type) {
	case heardConn:
		return ownerOf(c.Conn)
	case *tls.Conn:
		return ownerOf(c.NetConn())
	case *net.UnixConn:
		peer, err := proc.Peer(c)
		if err != nil {
			return 0, err
		}
		return int(peer.Uid), nil
	case *net.TCPConn:
		return ownerOfTCP(c)
	}
	return 0, fmt.Errorf("a connection of type %T", conn)
}

// ownerOfTCP looks for the other end among the sockets of this network namespace: who
// accepted the connection owns it, whoever listens on the port by now.
func ownerOfTCP(conn *net.TCPConn) (uid int, err error) {
	ours, theirs := addressOf(conn.LocalAddr()), addressOf(conn.RemoteAddr())
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		file, err := os.Open(table)
		if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return 0, err
		}
		uid, found, err := findOwner(file, theirs, ours)
		file.Close()
		if err != nil || found {
			return uid, err
		}
	}
	return 0, fmt.Errorf("the kernel lists no process of this network namespace at the other end of %s to %s", ours, theirs)
}

func addressOf(address net.Addr) netip.AddrPort {
	tcp, _ := address.(*net.TCPAddr)
	bound := tcp.AddrPort()
	return netip.AddrPortFrom(bound.Addr().Unmap().WithZone(""), bound.Port())
}

// findOwner looks for an established connection from local to remote in a table of sockets
// as /proc/net/tcp has it, and returns the user of the process that has it open. One that no
// process has open is listed as root's, and not found.
func findOwner(table io.Reader, local, remote netip.AddrPort) (uid int, found bool, err error) {
	const (
		localField, remoteField, stateField, uidField, inodeField = 1, 2, 3, 7, 9

		established = "01"
		noProcess   = "0"
	)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inodeField || fields[stateField] != established || fields[inodeField] == noProcess ||
			parseSocket(fields[localField]) != local || parseSocket(fields[remoteField]) != remote {
			continue
		}
		uid, err := strconv.Atoi(fields[uidField])
		return uid, err == nil, err
	}
	return 0, false, lines.Err()
}

// parseSocket reads an address as /proc/net/tcp has it: words of 32 bits in the machine's
// order, a colon, the port; all in hexadecimal digits. Of anything else it returns the zero
// address.
func parseSocket(text string) netip.AddrPort {
	const digits = 8 // of a word
	words, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}
	}
	var b []byte
	for ; len(words) >= digits; words = words[digits:] {
		word, err := strconv.ParseUint(words[:digits], 16, 32)
		if err != nil {
			return netip.AddrPort{}
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	address, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(address.Unmap(), uint16(number))
}
