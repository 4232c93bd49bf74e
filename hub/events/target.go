package events

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"lighter/hub/catalog"
	"lighter/wire"
	"lighter/wire/pattern"
)

// Target is a part of the hub's configuration: a receiver of events.
type Target struct {
	Name         string   `toml:"name" comment:"Name of the target, for lighter events and metrics: lower-case letters, digits and hyphens."`
	URL          string   `toml:"url" comment:"Where events are sent with POST: https://HOST/PATH. No redirect is followed. Errors and logs do not show the URL."`
	SecretFile   string   `toml:"secret_file" comment:"File with one line, the secret with which events are signed (header Lighter-Signature). Only the hub's user and group may have access to the file. A changed file is read again. Empty: events are not signed."`
	Kinds        []string `toml:"kinds" comment:"Events that are sent: ready, failed, removed. Empty: all of these."`
	Repositories []string `toml:"repositories" comment:"Patterns of names without tag, as lighter images shows them: registry.example.org/team/**. Empty: all images."`
	Private      bool     `toml:"private" comment:"Allow an address that is not public."`
	PlainHTTP    bool     `toml:"plain_http" comment:"Allow plain HTTP to another machine."`
	CA           string   `toml:"ca" comment:"File with certificates (PEM) to trust in addition to the system's. It is read when the hub starts."`
	Binary       bool     `toml:"binary" comment:"Send the attributes of an event as HTTP headers (CloudEvents' binary mode) instead of in the body."`
}

// maxTargets bounds the targets of a hub.
const maxTargets = 32

// kinds are the kinds of events that targets can get.
var kinds = []string{wire.StateReady, wire.StateFailed, wire.EventRemoved}

// Check returns an error if a target is invalid. The error does not show its URL.
func Check(targets []Target) error {
	if len(targets) > maxTargets {
		return fmt.Errorf("there are %d tables [[event]]: want %d at most", len(targets), maxTargets)
	}
	for i, t := range targets {
		if err := wire.CheckDomain(t.Name); err != nil { // the same form
			return fmt.Errorf("event %d: name %q: want 1 to 32 lower-case letters, digits and hyphens", i+1, t.Name)
		}
		if slices.ContainsFunc(targets[:i], func(other Target) bool { return other.Name == t.Name }) {
			return fmt.Errorf("event %q is configured twice", t.Name)
		}
		if err := t.check(); err != nil {
			return fmt.Errorf("event %q: %w", t.Name, err)
		}
	}
	return nil
}

func (t *Target) check() error {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil:
		return errors.New("url: want https://HOST[:PORT]/PATH, without a user")
	case u.Scheme == "http" && !t.PlainHTTP && !wire.IsLoopback(u.Hostname()):
		return errors.New("url: plain HTTP shows events to the network: use https, or set plain_http")
	}
	for _, kind := range t.Kinds {
		if !slices.Contains(kinds, kind) {
			return fmt.Errorf("kinds: %q: want %s", kind, strings.Join(kinds, ", "))
		}
	}
	for _, p := range t.Repositories {
		if err := pattern.Check(p); err != nil {
			return fmt.Errorf("repositories: %w", err)
		}
	}
	return nil
}

// wants reports whether the target is to get an event.
func (t *Target) wants(e catalog.Event) bool {
	if !slices.Contains(kinds, e.Kind) || len(t.Kinds) > 0 && !slices.Contains(t.Kinds, e.Kind) {
		return false
	}
	if len(t.Repositories) == 0 {
		return true
	}
	ref, err := wire.ParseName(e.Name)
	return err == nil && slices.ContainsFunc(t.Repositories, func(p string) bool {
		return pattern.Match(p, ref.NamedRepository())
	})
}

// hosts are the hosts that need no public address.
func (t *Target) hosts() []string {
	u, err := url.Parse(t.URL)
	if err != nil || !t.Private {
		return nil
	}
	if u.Port() != "" {
		return []string{u.Host}
	}
	return []string{net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])}
}
