package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lighter/bytesize"
	"lighter/cmd/command"
	"lighter/node/bundle"
	"lighter/node/container"
	"lighter/node/spec"
	"lighter/wire"
)

// images is the image store of containers without root.
const images = "/var/lib/lighter-images"

func runCommand() *cobra.Command {
	o := container.Options{}
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE [COMMAND [ARG...]]",
		Short: "Run a container of an image, with runc or crun alone",
		Long: `Run a container of an image until its process ends. Nothing but runc or crun is needed.

If a node with this --root runs on the machine, that node mounts the image, with its own hub
and cache. Otherwise the command starts a small node for this container alone. An image that
no hub has is pulled and unpacked as a whole, which the command says (see --pull). The
container and all that it has written are removed at its end, except in volumes.

Without root, the container runs in a user namespace, and its image comes from the image
store of a node (image_store). The flags of nodes and hubs have no effect then.

The container gets a terminal if standard input and output are one. It has the machine's
network. The exit code is that of the container's process, or 125 if Lighter fails, 126 if
the command cannot be executed, and 127 if the command does not exist.`,
		Example: `  lighter run python:3.12 python3 -c 'print("hello")'
  lighter run --net none --read-only -u 1000:1000 -v $PWD:/data -w /data tools/shell:1
  lighter run -e SEED=7 --memory 4GiB --cpus 2 physics/root:6.32 root -b -q fit.C >fit.log`,
		Args: func(cmd *cobra.Command, args []string) error {
			return failedRun(command.AtLeast(1, "IMAGE")(cmd, args[:min(len(args), 1)]))
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return failedRun(fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath()))
	})
	f := cmd.Flags()
	f.SetInterspersed(false) // flags after IMAGE are the command's
	complete := bundleFlags(cmd, &o.Bundle)
	f.BoolVarP(&o.Interactive, "interactive", "i", false, "pass standard input on, even if it is not a terminal")
	f.BoolVarP(&o.Terminal, "tty", "t", false, "give the container a terminal, even if its output is not one")
	f.StringVar(&o.Name, "name", "", "the container's `NAME`; also its host name without the machine's network")
	f.StringVar(&o.Runtime, "runtime", "", "the OCI runtime (`PROGRAM`); default: runc, or else crun")
	f.StringVar(&o.State, "state", "", "the `DIR` for the files of running containers, and for nothing else, on ext4, "+
		"XFS, btrfs or tmpfs; "+
		"default: /var/lib/lighter-containers, or without root lighter-containers in ~/.local/share")
	f.StringVar(&o.Store, "image-store", images, "the image store (`DIR`) of a node, for containers without root")
	remove := f.Bool("rm", true, "remove the container at its end; there is no other choice")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := complete(args[0], args[1:]); err != nil {
			return failedRun(err)
		}
		if !*remove {
			return failedRun(errors.New("--rm=false: containers are always removed; keep files with --volume"))
		}
		if o.Name != "" {
			if err := container.CheckName(o.Name); err != nil {
				return failedRun(err)
			}
		}
		code, err := container.Run(cmd.Context(), o)
		if err == nil && code != 0 {
			err = command.ErrReported // by the container's process
		}
		if err != nil {
			return command.Code(code, err)
		}
		return nil
	}
	return cmd
}

// failedRun gives an error of `lighter run` the exit code that no container's process has.
func failedRun(err error) error {
	if err == nil {
		return nil
	}
	return command.Code(container.ExitFailed, err)
}

// bundleFlags gives cmd the flags of a bundle. The function that it returns completes the options,
// after the flags are parsed.
func bundleFlags(cmd *cobra.Command, o *bundle.Options) (complete func(image string, args []string) error) {
	f := cmd.Flags()
	root, ownNode, parse := rootFlag(cmd), ownNodeFlags(cmd), specFlags(f, &o.Spec)
	f.StringVar(&o.Platform, "platform", "", "the image's `OS/ARCH[/VARIANT]`; default: this machine's")
	f.StringVar((*string)(&o.Pull), "pull", string(bundle.PullMissing),
		"when to pull the whole image instead (`WHEN`: missing: if no hub has it; always: without asking a hub; never)")
	f.BoolVar(&o.PlainHTTP, "source-plain-http", false,
		"allow plain HTTP to a registry that is not on this machine, for a whole image")
	return func(image string, args []string) (err error) {
		if _, err := wire.ParseName(image); err != nil {
			return err
		}
		if err := parse(args); err != nil {
			return err
		}
		if err := bundle.CheckPull(o.Pull); err != nil {
			return err
		}
		o.Image, o.Node = image, ownNode()
		o.Notice = func(line string) { fmt.Fprintln(os.Stderr, "lighter: "+line) }
		o.Watch = func(pull func(show func(wire.Progress)) error) error {
			_, err := watch(func(show func(wire.Progress)) (none struct{}, err error) { return none, pull(show) })
			return err
		}
		o.Mounts, err = mountsOf(root)()
		return err
	}
}

// specFlags adds the flags of a container's configuration. The function that it returns completes
// the options, after the flags are parsed.
func specFlags(f *pflag.FlagSet, o *spec.Options) (parse func(args []string) error) {
	var memory bytesize.Size
	env := f.StringArrayP("env", "e", nil, "set a variable (`NAME=VALUE`); NAME alone: as it is set outside")
	volumes := f.StringArrayP("volume", "v", nil, "show `HOST:CONTAINER[:ro]`, a file or directory of the machine")
	f.StringVarP(&o.Dir, "workdir", "w", "", "the working directory (`DIR`)")
	f.StringVarP(&o.User, "user", "u", "", "the `USER[:GROUP]`, names of the image or numbers")
	f.StringVar(&o.Entrypoint, "entrypoint", "", "run `PROGRAM` instead of the image's entrypoint and command")
	f.StringVar((*string)(&o.Network), "net", string(spec.NetworkHost),
		"the `NETWORK`: host (the machine's), or none (only loopback)")
	f.BoolVar(&o.ReadOnly, "read-only", false, "allow no writes to the container's root file system")
	f.TextVar(&memory, "memory", bytesize.Size(0), "the limit of memory (`SIZE`: 4GiB; 0: none)")
	f.Float64Var(&o.CPUs, "cpus", 0, "the limit of processor time, in processors (`NUMBER`: 1.5; 0: none)")
	return func(args []string) (err error) {
		o.Args, o.Memory = args, int64(memory)
		if o.Env, err = spec.Environment(*env); err != nil {
			return err
		}
		for _, text := range *volumes {
			v, err := spec.ParseVolume(text)
			if err != nil {
				return err
			}
			o.Volumes = append(o.Volumes, v)
		}
		return o.Check()
	}
}
