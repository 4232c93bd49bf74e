package public

import (
	"net/netip"
	"testing"
)

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1.1.1.1": true, "93.184.216.34": true, "172.32.0.1": true, "100.128.0.1": true, "2606:4700::1111": true,
		"2a00:1450::1": true, "::ffff:1.1.1.1": true,
		"127.0.0.1": false, "127.1.2.3": false, "0.0.0.0": false, "0.1.2.3": false, "10.1.2.3": false,
		"172.16.0.1": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.64.0.1": false, "198.18.0.1": false, "224.0.0.1": false, "239.1.1.1": false,
		"240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd12::1": false,
		"ff02::1": false, "fec0::1": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::127.0.0.1": false, "64:ff9b::7f00:1": false,
		"2002:7f00:1::": false, "2001:0:7f00:1::": false,
	} {
		if got := IsPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("IsPublic(%s) = %t, want %t", text, got, want)
		}
	}
}
