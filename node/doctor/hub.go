package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lighter/format/index"
	"lighter/store/origin"
	"lighter/wire/client"
)

const (
	slowHub = 300 * time.Millisecond // to an answer; a pull waits a second in total
	maxSkew = 30 * time.Second       // between clocks; HTTPS fails with much more, and logs cannot be compared
)

// observation is what a hub answered.
type observation struct {
	url    string
	err    error
	keys   []string // with which it signs
	took   time.Duration
	offset time.Duration // by which its clock is ahead; 0 if it does not say

	unlearnable error // why no node learns its key; nil: a node does
	others      bool  // another hub answers
}

// lookAtHubs examines whether the hubs answer, and sign with trusted keys.
func (d *doctor) lookAtHubs(ctx context.Context) {
	answers := 0
	var all []observation
	for _, url := range d.config.Hubs {
		s, err := ask(ctx, client.Options{URL: url, Scope: d.config.Scope, PlainHTTP: d.config.PlainHTTP,
			CAFile: d.config.CAFile})
		if err != nil {
			d.add("hub", Problem, err.Error(), "--plain-http if the network is to be trusted, or a hub with tls_cert and tls_key")
			continue
		}
		if s.err == nil {
			answers++
		}
		all = append(all, s)
	}
	for _, s := range all {
		s.others = answers > 0
		d.judgeHub(s, d.pinned())
	}
}

// ask asks a hub for its keys and its time. An error is about the options.
func ask(ctx context.Context, options client.Options) (s observation, err error) {
	hub, err := client.New(options)
	if err != nil {
		return s, err
	}
	node, err := origin.New(slog.New(slog.DiscardHandler), options)
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.url = hub.URL()
	keys, err := hub.Keys(ctx)
	if err != nil {
		s.err = err
		return s, nil
	}
	for _, key := range keys {
		s.keys = append(s.keys, index.FormatKey(key))
	}
	_, s.unlearnable = node.Keys(ctx)
	host, plain, transport := hub.Registry()
	scheme := "https"
	if plain {
		scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, scheme+"://"+host+"/", nil)
	if err != nil {
		return s, nil
	}
	began := time.Now()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return s, nil // the hub has just sent its keys: its clock does not matter now
	}
	res.Body.Close()
	s.took = time.Since(began)
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		s.offset = date.Sub(time.Now().Truncate(time.Second))
	}
	return s, nil
}

// pinned returns the keys that a node trusts: those of the running node, the configured ones, or
// the learned ones.
func (d *doctor) pinned() []string {
	if len(d.config.HubKeys) > 0 {
		return d.config.HubKeys
	}
	text, err := os.ReadFile(filepath.Join(d.config.Root, "hub.keys"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

func (d *doctor) judgeHub(s observation, pinned []string) {
	const area = "hub"
	if s.err != nil {
		level, what := Problem, s.err.Error()
		if s.others {
			level, what = Warning, what+"; another one answers"
		}
		d.add(area, level, what, "lighter hub there; curl -v "+s.url+"/readyz, and the path to it (proxy, firewall)")
		return
	}
	keys := strings.Join(s.keys, ", ")
	believed := slices.ContainsFunc(s.keys, func(key string) bool { return slices.Contains(pinned, key) })
	switch {
	case len(pinned) == 0 && s.unlearnable == nil && len(d.config.Hubs) == 1:
		d.add(area, OK, s.url+" answers; its key will be learned by the first node that needs it", "")
	case len(pinned) == 0 && s.unlearnable == nil:
		d.add(area, Problem, s.url+" is one of several hubs and no key of it is pinned: the node does not start",
			"--hub-key "+keys+" (if the hub's own log has the same)")
	case len(pinned) == 0:
		d.add(area, Problem, fmt.Sprintf("no key of %s is pinned, and none is learned (%v): no image is lazy, or the node does not start",
			s.url, s.unlearnable), "--hub-key "+keys+" (if the hub's own log has the same)")
	case !believed:
		d.add(area, Problem, fmt.Sprintf("%s signs with %s, which is not pinned: no image is lazy", s.url, keys),
			"if the hub's own log has the same: --hub-key "+keys+" (or hub_keys), or remove "+
				filepath.Join(d.config.Root, "hub.keys")+" of a hub on this machine; then restart the node")
	default:
		d.add(area, OK, s.url+" answers, and signs with a key that is pinned", "")
	}
	if s.took > slowHub {
		d.add(area, Warning, fmt.Sprintf("%s needs %s for an answer: a pull waits a second in total, and then goes on without it",
			s.url, s.took.Round(time.Millisecond)), "a hub, or a mirror of it, nearer to this machine")
	}
	if s.offset.Abs() > maxSkew {
		d.add(area, Warning, fmt.Sprintf("the clock of %s differs by %s", s.url, s.offset.Abs().Round(time.Second)),
			"timedatectl set-ntp true, on both machines")
	}
}
