package main

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	"lighter/cmd/command"
	"lighter/hub"
)

// servedHub runs a hub with the domain "team", changed by change, until stop is called.
func servedHub(t *testing.T, root string, change func(*hub.Config)) (address string, stop func()) {
	t.Helper()
	c := hub.DefaultConfig()
	c.Root, c.DiskReserve = root, 0
	c.Domains = []hub.Domain{{Name: "team", Repositories: []string{"team/**"}}}
	change(&c)
	ctx, end := context.WithCancel(t.Context())
	h, err := hub.Open(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, listener) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return "http://" + listener.Addr().String(), stop
}

// An argument that the hub refuses as invalid is a wrong argument, as one that the command refuses.
// What the hub does not have, or does not allow, is not.
func TestExitCodesOfAHubsAnswers(t *testing.T) {
	address, _ := servedHub(t, t.TempDir(), func(*hub.Config) {})
	for _, c := range []struct {
		code int
		args []string
		want string
	}{
		{command.ExitUsage, []string{"rm", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"inspect", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"verify", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"holders", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"trace", "show", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"mirror", t.TempDir(), "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"add", "docker://127.0.0.1:1/Upper"}, "HOST/REPO:TAG"},
		{command.ExitUsage, []string{"add", "docker://127.0.0.1:1/a:1", "Upper/case:1"}, "lower case"},
		{command.ExitUsage, []string{"add", "docker://127.0.0.1:1/a:1", "team/a:1"}, "--domain team"},
		{command.ExitUsage, []string{"add", "--platform", "arm64", "docker://127.0.0.1:1/a:1"}, "OS/ARCH"},
		{command.ExitUsage, []string{"retention", "run"}, "rule"},
		{command.ExitFailed, []string{"add", "docker://127.0.0.1:1/a:1"}, "127.0.0.1:1"},
		{command.ExitFailed, []string{"rm", "not/there:1"}, "not/there:1"},
		{command.ExitFailed, []string{"verify", "not/there:1"}, "not/there:1"},
		{command.ExitFailed, []string{"jobs", "cancel", "17"}, "17"},
		{command.ExitFailed, []string{"images", "--domain", "other"}, "no domain"},
	} {
		code, stdout, stderr := lighter(t, append(c.args, "--hub", address)...)
		if code != c.code || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("%q: exit %d, %q, printed %q; want exit %d and %q", c.args, code, stderr, stdout, c.code, c.want)
		}
	}
}
