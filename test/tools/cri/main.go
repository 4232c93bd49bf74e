// Command cri speaks to containerd as the kubelet does.
//
//	cri SOCKET METHOD [REQUEST]
//
// METHOD is a method of the runtime or the image service, PullImage for example. REQUEST is its request as JSON; the
// default is an empty request. cri prints the response as JSON. It waits until the services are ready.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// timeout bounds a call.
const timeout = 2 * time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 && len(args) != 3 {
		return errors.New("usage: cri SOCKET METHOD [REQUEST]")
	}
	method, err := find(args[1])
	if err != nil {
		return err
	}
	request, err := message(method.Input())
	if err != nil {
		return err
	}
	response, err := message(method.Output())
	if err != nil {
		return err
	}
	if len(args) == 3 {
		if err := protojson.Unmarshal([]byte(args[2]), request); err != nil {
			return fmt.Errorf("read the request of %s: %w", args[1], err)
		}
	}
	conn, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	if err := conn.Invoke(ctx, path, request, response, grpc.WaitForReady(true)); err != nil {
		return err
	}
	out, err := protojson.Marshal(response)
	if err == nil {
		_, err = fmt.Println(string(out))
	}
	return err
}

// find returns the method of one of the two services.
func find(name string) (protoreflect.MethodDescriptor, error) {
	services := cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		method := services.Get(i).Methods().ByName(protoreflect.Name(name))
		if method != nil && !method.IsStreamingServer() {
			return method, nil
		}
	}
	return nil, fmt.Errorf("CRI has no method %q with one response", name)
}

// message returns an empty message of a type.
func message(of protoreflect.MessageDescriptor) (protoreflect.ProtoMessage, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return nil, err
	}
	return kind.New().Interface(), nil
}
