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
	"lighter/wire"
	"lighter/wire/client"
)

const (
	slowHub = 300 * time.Millisecond // a slower answer is a warning; a pull waits 1.5 s in total for silent hubs
	maxSkew = 30 * time.Second       // a larger difference of clocks is a warning; with much more, HTTPS fails
)

// observation has what a hub has answered.
type observation struct {
	url    string
	err    error
	keys   []string      // the keys that it signs with
	took   time.Duration // how long a request took on an open connection; 0: it failed
	offset time.Duration // how far its clock is ahead; 0 if its answer has no date

	unlearnable error // why a node on this machine cannot learn its key; nil: it can
}

// hubs checks whether the hubs answer, and whether they sign with pinned keys.
func (m *machine) hubs(ctx context.Context) (found []Finding) {
	var seen []observation
	for _, url := range m.config.Hubs {
		o, err := observe(ctx, client.Options{URL: url, Domain: m.config.Domain, PlainHTTP: m.config.PlainHTTP,
			CAFile: m.config.CAFile})
		if err != nil {
			found = append(found, Finding{Level: Problem, What: err.Error(),
				Repair: "--plain-http if the network can be trusted, or a hub with tls_cert and tls_key"})
			continue
		}
		seen = append(seen, o)
	}
	answers := slices.ContainsFunc(seen, func(o observation) bool { return o.err == nil })
	for _, o := range seen {
		found = append(found, m.judgeHub(o, answers)...)
	}
	return found
}

// observe asks a hub for its keys and its time. It returns an error if the options are invalid. If
// the hub fails, the error is in the observation.
func observe(ctx context.Context, options client.Options) (o observation, err error) {
	hub, err := client.New(options)
	if err != nil {
		return o, err
	}
	node, err := origin.New(slog.New(slog.DiscardHandler), options)
	if err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	o.url = hub.URL()
	keys, err := hub.Keys(ctx)
	if err != nil {
		o.err = err
		return o, nil
	}
	for _, key := range keys {
		o.keys = append(o.keys, index.FormatKey(key))
	}
	_, o.unlearnable = node.Keys(ctx)
	began := time.Now()
	res, err := hub.Get(ctx, wire.KeyPath(hub.Domain()), nil)
	if err != nil {
		return o, nil // the hub has sent its keys; without a second answer, its time is unknown
	}
	res.Body.Close()
	o.took = time.Since(began)
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		o.offset = date.Sub(time.Now().Truncate(time.Second))
	}
	return o, nil
}

// pinned returns the keys that a node trusts: the keys that the running node reports, the
// configured keys, or the learned keys.
func (m *machine) pinned() []string {
	if len(m.config.HubKeys) > 0 {
		return m.config.HubKeys
	}
	text, err := os.ReadFile(m.learnedKeys())
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// learnedKeys returns the path of the file with the keys that the node has learned.
func (m *machine) learnedKeys() string { return filepath.Join(m.config.Root, "hub.keys") }

// judgeHub judges what a hub has answered. answers says whether any hub has answered.
func (m *machine) judgeHub(o observation, answers bool) []Finding {
	if o.err != nil {
		repair := "start lighter hub there; try curl -v " + o.url + "/readyz, and check proxies and firewalls"
		return first([]rule{
			{answers, Warning, o.err.Error() + "; another hub answers", repair},
			{true, Problem, o.err.Error(), repair},
		})
	}
	keys, pinned := strings.Join(o.keys, ", "), m.pinned()
	pin := "--hub-key " + keys + " (if the hub's own log has the same key)"
	learnable := len(pinned) == 0 && o.unlearnable == nil
	believed := slices.ContainsFunc(o.keys, func(key string) bool { return slices.Contains(pinned, key) })
	return append(first([]rule{
		{believed, OK, o.url + " answers, and signs with a key that is pinned", ""},
		{learnable && len(m.config.Hubs) == 1, OK,
			o.url + " answers; its key will be learned when a node first needs it", ""},
		{learnable, Problem,
			o.url + " is one of several hubs and no key of it is pinned: the node does not start", pin},
		{len(pinned) == 0, Problem,
			fmt.Sprintf("no key of %s is pinned, and none is learned (%v): "+
				"no image is lazy, or the node does not start", o.url, o.unlearnable), pin},
		{true, Problem, fmt.Sprintf("%s signs with %s, which is not pinned: no image is lazy", o.url, keys),
			"if the hub's own log has the same key: --hub-key " + keys + " (or hub_keys), or, if the hub is on this " +
				"machine, remove " + m.learnedKeys() + "; then restart the node"},
	}), all("", []rule{
		{o.took > slowHub, Warning,
			fmt.Sprintf("%s needs %s to answer, which delays each pull", o.url, o.took.Round(time.Millisecond)),
			"use a hub, or a mirror of it, that is nearer to this machine"},
		{o.offset.Abs() > maxSkew, Warning,
			fmt.Sprintf("the clock of %s differs by %s", o.url, o.offset.Abs().Round(time.Second)),
			"timedatectl set-ntp true, on both machines"},
	})...)
}
