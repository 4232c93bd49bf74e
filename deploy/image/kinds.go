package main

import (
	"archive/tar"
	"embed"
	"path"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// kind is what an image is for.
type kind struct {
	description string
	config      v1.ImageConfig
	// files returns what the layer has, in order.
	files func(program []byte, release string) ([]file, error)
}

// file is an entry of the layer: a name, a type and a mode, and a text if it is a regular file.
type file struct {
	tar.Header
	text []byte
}

var kinds = map[string]kind{
	"kubernetes": {
		description: "Installs Lighter on the nodes of a Kubernetes cluster; also the hub",
		config:      v1.ImageConfig{Entrypoint: []string{"/lighter"}, WorkingDir: "/", Env: []string{"PATH=/"}},
		files: func(program []byte, _ string) ([]file, error) {
			return []file{
				{Header: tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}},
				regular("lighter", 0o755, program),
			}, nil
		},
	},
	"talos": {description: "A node of Lighter as a system extension of Talos", files: extension},
}

func regular(name string, mode int64, text []byte) file {
	return file{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}, text}
}

// talos has the files of the extension, without the program.
//
//go:embed talos
var talos embed.FS

// services are the root directories of the extension's services.
const services = "rootfs/usr/local/lib/containers/"

// extension returns the files of a system extension of Talos. Both services have the program:
// Talos' imager makes an empty file of a hard link.
func extension(program []byte, release string) ([]file, error) {
	var files []file
	for _, f := range []struct{ from, to string }{
		{"manifest.yaml", "manifest.yaml"},
		{"10-lighter.part", "rootfs/etc/cri/conf.d/10-lighter.part"},
		{"lighter.yaml", "rootfs/usr/local/etc/containers/lighter.yaml"},
		{"lighter-keeper.yaml", "rootfs/usr/local/etc/containers/lighter-keeper.yaml"},
	} {
		text, err := talos.ReadFile("talos/" + f.from)
		if err != nil {
			return nil, err
		}
		files = append(files, regular(f.to, 0o644, []byte(strings.ReplaceAll(string(text), "RELEASE", release))))
	}
	return withDirectories(append(files, regular(services+"lighter/lighter", 0o755, program),
		regular(services+"lighter-keeper/lighter", 0o755, program))), nil
}

// withDirectories puts the directories of files before them.
func withDirectories(files []file) (all []file) {
	made := map[string]bool{".": true}
	var add func(dir string)
	add = func(dir string) {
		if !made[dir] {
			made[dir] = true
			add(path.Dir(dir))
			all = append(all, file{Header: tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}})
		}
	}
	for _, f := range files {
		add(path.Dir(f.Name))
		all = append(all, f)
	}
	return all
}
