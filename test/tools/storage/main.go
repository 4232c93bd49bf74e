// Command storage uses an additional image store as CRI-O does, with the library of CRI-O
// (containers/storage, and the storage and copy packages of containers/image).
//
//	storage DIR STORE
//
// It keeps its own storage below DIR, and reads commands from standard input, one a line. It
// answers each with a line: "ok" and the result, or "error" and the cause. The storage stays open
// until the end of the input.
//
//	images                    the names of all images
//	image NAME|ID             the image's ID
//	config NAME               the image's user, entry point and size, through containers/image
//	pull SOURCE NAME          copy docker://SOURCE to NAME, as PullImage does; the layers that it has
//	create CONTAINER NAME|ID  a container of an image
//	mount CONTAINER           the directory where its root is mounted
//	unmount CONTAINER
//	delete CONTAINER
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.podman.io/image/v5/copy"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/signature"
	istorage "go.podman.io/image/v5/storage"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage"
	"go.podman.io/storage/pkg/reexec"
)

func main() {
	if reexec.Init() { // the library runs this program again
		return
	}
	if err := serve(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, dir, additional string) error {
	opened, err := storage.GetStore(storage.StoreOptions{
		GraphRoot: filepath.Join(dir, "root"), RunRoot: filepath.Join(dir, "run"), GraphDriverName: "overlay",
		GraphDriverOptions: []string{"overlay.imagestore=" + additional},
	})
	if err != nil {
		return err
	}
	s := &store{opened}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := s.do(ctx, strings.Fields(lines.Text()))
		if err != nil {
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok", answer)
		}
	}
	_, err = s.Shutdown(false)
	return err
}

type store struct{ storage.Store }

func (s *store) do(ctx context.Context, words []string) (answer string, err error) {
	words = append(words, "", "", "")
	switch arg := words[1]; words[0] {
	case "images":
		return s.images()
	case "image":
		image, err := s.Image(arg)
		if err != nil {
			return "", err
		}
		return image.ID, nil
	case "config":
		return s.config(ctx, arg)
	case "pull":
		return s.pull(ctx, arg, words[2])
	case "create":
		image, err := s.Image(words[2])
		if err != nil {
			return "", err
		}
		container, err := s.CreateContainer("", []string{arg}, image.ID, "", "", nil)
		if err != nil {
			return "", err
		}
		return container.ID, nil
	case "mount":
		return s.Mount(arg, "")
	case "unmount":
		_, err := s.Unmount(arg, false)
		return "", err
	case "delete":
		return "", s.DeleteContainer(arg)
	}
	return "", fmt.Errorf("unknown command %q", words[0])
}

func (s *store) images() (string, error) {
	images, err := s.Images()
	if err != nil {
		return "", err
	}
	var names []string
	for _, image := range images {
		names = append(names, image.Names...)
	}
	slices.Sort(names)
	return strings.Join(names, " "), nil
}

// config returns what CRI-O reads of an image before it starts a container.
func (s *store) config(ctx context.Context, name string) (string, error) {
	ref, err := istorage.Transport.ParseStoreReference(s.Store, name)
	if err != nil {
		return "", err
	}
	image, err := ref.NewImage(ctx, &types.SystemContext{})
	if err != nil {
		return "", err
	}
	defer image.Close()
	size, err := image.Size()
	if err != nil {
		return "", err
	}
	config, err := image.OCIConfig(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("user=%q command=%q bytes=%t", config.Config.User, config.Config.Cmd, size > 0), nil
}

func (s *store) pull(ctx context.Context, source, name string) (string, error) {
	from, err := docker.ParseReference("//" + source)
	if err != nil {
		return "", err
	}
	to, err := istorage.Transport.ParseStoreReference(s.Store, name)
	if err != nil {
		return "", err
	}
	policy, err := signature.NewPolicyContext(&signature.Policy{
		Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}})
	if err != nil {
		return "", err
	}
	defer policy.Destroy()
	var fetched []string
	progress := make(chan types.ProgressProperties)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p := range progress {
			if p.Event == types.ProgressEventDone {
				fetched = append(fetched, p.Artifact.MediaType)
			}
		}
	}()
	_, err = copy.Image(ctx, policy, to, from, &copy.Options{Progress: progress, ProgressInterval: 1,
		SourceCtx: &types.SystemContext{DockerInsecureSkipTLSVerify: types.OptionalBoolTrue}})
	close(progress)
	<-done
	return strings.Join(fetched, " "), err
}
