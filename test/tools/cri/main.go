// Command cri speaks to containerd as the kubelet does.
//
//	cri SOCKET pull REFERENCE    pulls an image, and prints its ID, the digest of its config
//	cri SOCKET rm REFERENCE      removes an image
//	cri SOCKET fs                prints the images' directory; the kubelet watches its file system
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 && (len(args) != 2 || args[1] != "fs") {
		return errors.New("usage: cri SOCKET pull REFERENCE | rm REFERENCE | fs")
	}
	conn, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	images := cri.NewImageServiceClient(conn)
	image := &cri.ImageSpec{Image: args[len(args)-1]}
	switch args[1] {
	case "fs":
		info, err := images.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		for _, system := range info.GetImageFilesystems() {
			fmt.Println(system.GetFsId().GetMountpoint())
		}
		return nil
	case "pull":
		pulled, err := images.PullImage(ctx, &cri.PullImageRequest{Image: image}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		fmt.Println(pulled.GetImageRef())
		return nil
	case "rm":
		_, err := images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: image})
		return err
	}
	return fmt.Errorf("unknown command %q: want pull, rm or fs", args[1])
}
