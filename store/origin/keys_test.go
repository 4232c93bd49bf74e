package origin

import (
	"crypto/ed25519"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"lighter/format/index"
)

var hubKey = ed25519.PublicKey(make([]byte, ed25519.PublicKeySize))

func serveKey(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, index.FormatKey(hubKey)+"\n")
}

// checkKeys asks the origins for their key and wants it, or an error that contains text.
func checkKeys(t *testing.T, text string, urls ...string) {
	t.Helper()
	keys, err := over(t, urls...).Keys(t.Context())
	switch {
	case text == "" && (err != nil || len(keys) != 1 || !keys[0].Equal(hubKey)):
		t.Errorf("%s: got %v, %v; want the hub's key", urls, keys, err)
	case text != "" && (err == nil || !strings.Contains(err.Error(), text)):
		t.Errorf("%s: %v, %v, want an error with %q", urls, keys, err, text)
	}
}

// The key of a hub of this process's user is learned over IPv4, IPv6, a listener for both, and a
// Unix socket; but not from one of several hubs.
func TestKeyOfOurOwnHub(t *testing.T) {
	sockets := map[string]net.Listener{}
	for name, at := range map[string][2]string{
		"IPv4": {"tcp4", "127.0.0.1:0"}, "both": {"tcp", ":0"},
		"Unix": {"unix", filepath.Join(t.TempDir(), "hub.sock")},
	} {
		listener, err := net.Listen(at[0], at[1])
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(serveKey)}}
		server.Start()
		t.Cleanup(server.Close)
		sockets[name] = listener
	}
	port := func(name string) string { _, port, _ := net.SplitHostPort(sockets[name].Addr().String()); return port }
	checkKeys(t, "", "http://127.0.0.1:"+port("IPv4"))
	checkKeys(t, "", "http://127.0.0.1:"+port("both"))
	checkKeys(t, "", "http://localhost:"+port("both"))
	checkKeys(t, "", "unix:"+sockets["Unix"].Addr().String())
	checkKeys(t, "several hubs", "http://127.0.0.1:"+port("IPv4"), "unix:"+sockets["Unix"].Addr().String())
	checkKeys(t, "several hubs", "http://10.255.255.1:1", "unix:"+sockets["Unix"].Addr().String())
	checkKeys(t, "not on this machine", "http://10.255.255.1:1")
}

// The table has the format of /proc/net/tcp on a little-endian machine.
func TestFindOwner(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1B9E 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 41 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1B9E 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1001        0 42 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:C001 0100007F:1B9E 01 00000000:00000000 00:00000000 00000000     0        0 43 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:1B9E 0100007F:C002 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000 20 4 30 10 -1
   4: 0100007F:1B9E 0100007F:C003 05 00000000:00000000 00:00000000 00000000     0        0 44 1 0000000000000000 20 4 30 10 -1
   5: 0000000000000000FFFF00000100007F:1B9E 0000000000000000FFFF00000100007F:C004 01 00000000:00000000 00:00000000 00000000  1004        0 45 1 0000000000000000
   6: 00000000000000000000000001000000:1B9E 00000000000000000000000001000000:C005 01 00000000:00000000 00:00000000 00000000  1005        0 46 1 0000000000000000
   7: nonsense
`
	for remote, want := range map[string]int{
		"127.0.0.1:49153": 1001, "127.0.0.1:49154": -1, "127.0.0.1:49155": -1, "127.0.0.1:49156": 1004,
		"[::1]:49157": 1005, "127.0.0.1:49158": -1, "127.0.0.2:49153": -1,
	} {
		at := netip.MustParseAddrPort(remote)
		local := netip.AddrPortFrom(at.Addr(), 7070)
		uid, found, err := findOwner(strings.NewReader(table), local, at)
		if err != nil || found != (want >= 0) || found && uid != want {
			t.Errorf("%s: got %d, %v, %v, want %d", remote, uid, found, err, want)
		}
	}
}
