package registries

import (
	"errors"
	"fmt"
	"strings"

	"lighter/registries"
	"lighter/wire/pattern"
)

// Reached is the part of a table [[registry]] that hubs and nodes have in common: how the registry
// is reached, and with which login.
type Reached = registries.Registry

// Registry is a table [[registry]] of the hub's configuration. It is about one other registry, or
// about all whose host names match a pattern.
type Registry struct {
	Reached

	Add bool `toml:"add" comment:"Images may be added from the registry with the hub's own login, if the user gives none: everybody who may add images can read all that the hub can read there."`

	PullThrough  bool     `toml:"pull_through" comment:"Clients may read the registry through the hub. host must be no pattern."`
	PushNames    []string `toml:"push_names" comment:"Host names under which clients push to the registry through the hub, with their own logins: push.example.org, or HOST:PORT. The hub passes all requests for these names to the registry, and ingests the images that everybody may read (readers, repositories). host must be no pattern."`
	Readers      string   `toml:"readers" comment:"Who may read it through the hub. anyone: everybody, what the registry gives to clients without a login. credentials: each client, what the registry gives to the login that the client sends. hub: everybody who reaches the hub, what the registry gives to the hub's own login, in the repositories listed. Empty: anyone."`
	Repositories []string `toml:"repositories" comment:"Patterns of the repositories that clients may read through the hub, and from which pushed images are ingested, without the host: library/*, team/**. Empty: all, unless readers is hub."`
	TagSeconds   int64    `toml:"tag_seconds" comment:"How long the hub believes a tag that clients read through it before it asks the registry again. 0: 60 seconds."`

	Attach []string `toml:"attach" comment:"Patterns of repositories, without the host: physics/*, team/**. To the images that the hub has from there, it attaches an index in this registry, as lighter attach does: nodes that know the hub's key (attached_keys) start them lazily also where they cannot reach the hub. The login needs the right to push there."`
}

// Check returns an error if a table is invalid. The error has one line.
func Check(all []Registry) error {
	if err := registries.Check(reached(all)); err != nil {
		return err
	}
	for i := range all {
		if err := all[i].check(); err != nil {
			return fmt.Errorf("registry %d (%s): %w", i+1, all[i].Host, err)
		}
	}
	return nil
}

func (r *Registry) check() error {
	if r.Add && !r.HasLogin() {
		return errors.New("add is for the hub's own login: set logins, helper, plugin, password_file or token_file")
	}
	for _, p := range r.Attach {
		if err := pattern.Check(p); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		if path, has := strings.CutPrefix(p, r.Host+"/"); has {
			return fmt.Errorf("attach: %q has the host: write %q", p, path)
		}
	}
	return nil
}

func reached(all []Registry) (common []registries.Registry) {
	for _, r := range all {
		common = append(common, r.Reached)
	}
	return common
}
