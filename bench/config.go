package bench

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"lighter/test/testkit/site"
)

// Default is the default configuration, in TOML. It explains every key.
//
//go:embed default.toml
var Default string

// Config selects what is measured.
type Config struct {
	Rounds    int     `toml:"rounds"`
	Recorded  int     `toml:"recorded"`
	FullPulls int     `toml:"full_pulls"`
	Links     []Link  `toml:"link"`
	Images    []Image `toml:"image"`
	Peers     []Peer  `toml:"peer"`
}

// Link is the network link between the machine and the side of the registry and the hub.
type Link struct {
	Name      string   `toml:"name" json:"name"`
	Rate      string   `toml:"rate" json:"rate"`                               // in tc's notation
	RTT       Duration `toml:"rtt" json:"rtt"`                                 // round-trip time
	Workloads []string `toml:"workloads,omitempty" json:"workloads,omitempty"` // IMAGE/WORKLOAD; empty: all
}

// Image is an image and its workloads.
type Image struct {
	Name      string     `toml:"name"`
	Layout    string     `toml:"layout"` // OCI layout with the tag latest; empty: the one made by test/setup
	Workloads []Workload `toml:"workload"`
}

// Workload is a command in an image, and the condition under which it is ready. Without a condition
// it is ready when it has ended.
type Workload struct {
	Image     string   `toml:"-"`
	Name      string   `toml:"name"`
	Argv      []string `toml:"argv"`
	ReadyLine string   `toml:"ready_line"`
	ReadyPort int      `toml:"ready_port"`
	ReadyPath string   `toml:"ready_path"`

	Ready site.Ready `toml:"-"`
}

// String returns the workload's full name.
func (w Workload) String() string { return w.Image + "/" + w.Name }

// Serves reports whether the workload keeps running once it is ready.
func (w Workload) Serves() bool { return w.Ready != site.Ready{} }

// Peer is another snapshotter; default.toml explains its keys.
type Peer struct {
	Name         string            `toml:"name"`
	Snapshotter  string            `toml:"snapshotter"`
	Command      []string          `toml:"command"`
	Capabilities []string          `toml:"capabilities"`
	Exports      map[string]string `toml:"exports"`
	Suffix       string            `toml:"suffix"`
	Convert      []string          `toml:"convert"`
	Pull         []string          `toml:"pull"`
	NodeArgs     []string          `toml:"node_args"`
}

// Duration is a time.Duration that is encoded as a text, for example "10ms".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	parsed, err := time.ParseDuration(string(b))
	if err == nil && parsed < 0 {
		err = fmt.Errorf("%s is negative", parsed)
	}
	*d = Duration(parsed)
	return err
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// ReadConfig reads a configuration file. Without a path it returns Default.
func ReadConfig(path string) (Config, error) {
	text, name := []byte(Default), "the default configuration"
	if path != "" {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return Config{}, err
		}
		name = path
	}
	c, err := parseConfig(text)
	if err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func parseConfig(text []byte) (Config, error) {
	c := Config{Rounds: 3, Recorded: 3, FullPulls: 1}
	decoder := toml.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		var missing *toml.StrictMissingError
		if errors.As(err, &missing) && len(missing.Errors) > 0 {
			line, _ := missing.Errors[0].Position()
			return c, fmt.Errorf("line %d: there is no key %q", line, strings.Join(missing.Errors[0].Key(), "."))
		}
		var wrong *toml.DecodeError
		if errors.As(err, &wrong) {
			line, _ := wrong.Position()
			return c, fmt.Errorf("line %d: %w", line, err)
		}
		return c, err
	}
	for i := range c.Images {
		image := &c.Images[i]
		if image.Layout != "" {
			var err error
			if image.Layout, err = filepath.Abs(image.Layout); err != nil {
				return c, err
			}
		}
		for j := range image.Workloads {
			w := &image.Workloads[j]
			w.Image = image.Name
			if err := w.compile(); err != nil {
				return c, fmt.Errorf("workload %s: %w", w, err)
			}
		}
	}
	return c, c.check()
}

// compile sets Ready from the configuration's keys.
func (w *Workload) compile() error {
	w.Ready = site.Ready{Port: w.ReadyPort, Path: w.ReadyPath}
	switch {
	case len(w.Argv) == 0:
		return errors.New("it has no argv")
	case w.ReadyLine != "" && w.ReadyPort != 0:
		return errors.New("set ready_line or ready_port, not both")
	case w.ReadyPort < 0 || w.ReadyPort > 65535:
		return fmt.Errorf("ready_port is %d, want 1 to 65535", w.ReadyPort)
	case w.ReadyPort == 0 && w.ReadyPath != "":
		return errors.New("ready_path needs a ready_port")
	}
	if w.ReadyLine != "" {
		var err error
		w.Ready.Line, err = regexp.Compile(w.ReadyLine)
		return err
	}
	return nil
}

// Names of images, workloads, links and peers become parts of references and file names.
var names = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)

func (c Config) check() error {
	if c.Rounds < 1 || c.Recorded < 1 || c.FullPulls < 1 {
		return errors.New("rounds, recorded and full_pulls must be at least 1")
	}
	var all []string
	for _, link := range c.Links {
		all = append(all, "link "+link.Name)
		for _, name := range link.Workloads {
			if !slices.ContainsFunc(c.Workloads(), func(w Workload) bool { return w.String() == name }) {
				return fmt.Errorf("link %s: there is no workload %s", link.Name, name)
			}
		}
	}
	for _, image := range c.Images {
		all = append(all, "image "+image.Name)
		for _, w := range image.Workloads {
			all = append(all, "workload "+w.String())
		}
	}
	for _, p := range c.Peers {
		all = append(all, "peer "+p.Name)
		switch {
		case p.Snapshotter == "":
			return fmt.Errorf("peer %s: it has no snapshotter", p.Name)
		case (p.Snapshotter == site.Lighter) != (len(p.NodeArgs) > 0):
			return fmt.Errorf("peer %s: node_args are for the snapshotter %s, which needs them", p.Name, site.Lighter)
		case (p.Snapshotter == site.Lighter) != strings.HasPrefix(p.Name, site.Lighter+"-"):
			return fmt.Errorf("peer %s: the names of peers with the snapshotter %[2]s begin with %[2]s-, and no others",
				p.Name, site.Lighter)
		}
	}
	slices.Sort(all)
	for i, name := range all {
		kind, rest, _ := strings.Cut(name, " ")
		for part := range strings.SplitSeq(rest, "/") {
			if !names.MatchString(part) {
				return fmt.Errorf("%s %q: a name has lower-case letters, digits, and . _ - between them", kind, part)
			}
		}
		if i > 0 && all[i-1] == name {
			return fmt.Errorf("%s is configured twice", name)
		}
	}
	return nil
}

// Workloads returns the workloads of all images, in their order.
func (c Config) Workloads() []Workload {
	var all []Workload
	for _, image := range c.Images {
		all = append(all, image.Workloads...)
	}
	return all
}
