package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"lighter/cmd/command"
	"lighter/deploy"
	"lighter/hub"
	"lighter/install"
	"lighter/install/systemd"
	"lighter/node"
)

func installSystemdCommand() *cobra.Command {
	config := node.DefaultConfig()
	var file string
	cmd := &cobra.Command{
		Use:   "systemd [flags]",
		Short: "Install the node, and the hub if wanted, as services of systemd",
		Long: `Install the node as a service of systemd, which runs this binary: put the binary at its
final place first, and outside of /home. The command writes the unit, and
` + deploy.NodeConfig + ` with these flags if that file does not exist. An existing file is never
changed. With --config, the service uses that file. The service is enabled, and is
started, or restarted, with --restart; containers continue meanwhile.

Tables of contents of images in registries count only in repositories that --direct or
--direct-verified names, and indexes that are attached to images only with --attached-key:
none by default. A node that reads registries needs no hub (--hub ""). On a terminal, the
command asks for the repositories of --direct if it writes the configuration and the flag
is missing; --direct "" answers that there are none.

--hub-service also installs a hub, with ` + deploy.HubConfig + `.`,
		Example: `  sudo lighter install systemd --hub https://hub.example.org --hub-key ed25519:... --restart
  sudo lighter install systemd --hub "" --attached-key ed25519:... --restart
  sudo lighter install systemd --hub "" --direct 'reg.example.org/physics/**' --restart
  sudo lighter install systemd --config /srv/lighter/node.toml
  sudo lighter install systemd --hub-service --restart`,
		Args: command.Exactly(),
	}
	nodeFlags(cmd, &config, &file)
	withHub := cmd.Flags().Bool("hub-service", false, "install a hub, too")
	note := "" // for the report
	return carryOut(cmd, restartFlag(cmd), func() (_ install.Target, err error) {
		_, err = os.Stat(deploy.NodeConfig)
		if writes := file == "" && errors.Is(err, fs.ErrNotExist); writes && !cmd.Flags().Changed("direct") {
			if note, err = completeDirect(cmd, &config); err != nil {
				return nil, err
			}
		}
		return systemdTarget(cmd, file, &config, *withHub)
	}, func(t install.Target, ctx context.Context) (*install.Plan, error) {
		p, err := t.Install(ctx)
		if p != nil && note != "" {
			p.Notes = append(p.Notes, note)
		}
		return p, err
	})
}

// completeDirect asks for the repositories in direct, if there is a user at a terminal. note says
// that there are none.
func completeDirect(cmd *cobra.Command, config *node.Config) (note string, err error) {
	asJSON, err := cmd.Flags().GetBool("json")
	if err != nil {
		return "", err
	}
	if !asJSON && term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())) {
		config.Direct, err = askDirect(cmd.Context(), os.Stdin, os.Stderr)
	}
	if err != nil || len(config.Direct) > 0 {
		return "", err
	}
	return "direct is empty: no repository is trusted for tables of contents (--direct, or " + deploy.NodeConfig + ")",
		nil
}

const directQuestion = `Which repositories do you trust for tables of contents (eStargz, zstd:chunked, SOCI)? Their images
then start without a hub; but whoever may push there can put files into every image on this machine
that has a layer with the same diffID.
Example: reg.example.org/physics/** quay.io/team/*
Patterns, or nothing for none: `

// askDirect asks a user for the patterns of repositories in direct. An empty answer is none. The
// caller checks the patterns.
func askDirect(ctx context.Context, in io.Reader, out io.Writer) ([]string, error) {
	if _, err := io.WriteString(out, directQuestion); err != nil {
		return nil, err
	}
	line, answered := "", make(chan error, 1)
	go func() { // a read of a terminal cannot be ended: it ends with the process
		var err error
		line, err = bufio.NewReader(io.LimitReader(in, 1<<16)).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		answered <- err
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case err := <-answered:
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
	}
	return strings.FieldsFunc(line, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }), nil
}

// systemdTarget returns the target systemd for the flags of a node.
func systemdTarget(cmd *cobra.Command, file string, config *node.Config, withHub bool) (install.Target, error) {
	var given []string // flags of the node
	forNode := &cobra.Command{}
	nodeFlags(forNode, new(node.Config), new(string))
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "config" && forNode.Flags().Lookup(f.Name) != nil {
			given = append(given, "--"+f.Name)
		}
	})
	if file != "" && len(given) > 0 {
		return nil, command.Usage(fmt.Errorf("--config and %s: set this in %s", given[0], file))
	}
	if err := loadConfig(cmd, file, config); err != nil {
		return nil, err
	}
	if err := config.CheckHubs(); err != nil {
		return nil, command.Usage(err)
	}
	program, err := executable()
	if err != nil {
		return nil, err
	}
	t := &systemd.Target{Machine: install.Machine{System: "/"}, Program: program,
		Node: systemd.Service{Config: deploy.NodeConfig}, Root: config.Root}
	if file != "" {
		t.Node.Config, err = filepath.Abs(file)
	} else {
		t.Node, err = nodeService(*config, given)
	}
	if err == nil && withHub {
		t.Hub, err = hubService()
	}
	return t, err
}

// executable returns the path of this program.
func executable() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// nodeService returns the service of a node with a configuration. given are the flags that the user
// gave: an existing file has to have their values.
func nodeService(config node.Config, given []string) (systemd.Service, error) {
	text, err := configText(config)
	s := systemd.Service{Config: deploy.NodeConfig, Text: []byte(text)}
	if len(given) == 0 {
		return s, err
	}
	s.Compare = func(existing []byte) error {
		old := node.DefaultConfig()
		if err := decodeConfig(existing, &old); err != nil {
			return err
		}
		if oldText, err := configText(old); err != nil || oldText == text {
			return err
		}
		return fmt.Errorf("set %s there", strings.Join(given, " and "))
	}
	return s, err
}

// hubService returns the service of a hub with the default configuration.
func hubService() (*systemd.Service, error) {
	text, err := configText(hub.DefaultConfig())
	return &systemd.Service{Config: deploy.HubConfig, Text: []byte(text)}, err
}

func uninstallSystemdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "systemd [flags]",
		Short: "Stop and remove the services of lighter install systemd",
		Long: `Stop and remove the services that "lighter install systemd" installed, and the
configuration files that it wrote and nobody has changed. Undo the other targets first,
so that containerd does not look for the node. A hub's data stays.`,
		Example: `  sudo lighter uninstall containerd --restart && sudo lighter uninstall systemd
  sudo lighter uninstall systemd --purge`,
		Args: command.Exactly(),
	}
	t := &systemd.Target{Machine: install.Machine{System: "/"}}
	var root string
	f := cmd.Flags()
	f.StringVar(&root, "root", "", "the node's directory (`DIR`; default: as in "+deploy.NodeConfig+")")
	f.BoolVar(&t.Force, "force", false, "remove the node although containers use lazy images: their reads fail")
	f.BoolVar(&t.Purge, "purge", false,
		"remove the node's directory, too: its cache, and the writable files of containers")
	return carryOut(cmd, new(install.Options), func() (install.Target, error) {
		config, file := node.DefaultConfig(), ""
		if _, err := os.Stat(deploy.NodeConfig); err == nil && root == "" {
			file = deploy.NodeConfig
		}
		if err := effective(cmd, file, &config); err != nil {
			return nil, err
		}
		if t.Root = config.Root; root != "" {
			t.Root = root
		}
		return t, nil
	}, install.Target.Uninstall)
}
