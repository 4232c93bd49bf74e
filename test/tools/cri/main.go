// Command cri speaks to containerd as the kubelet does.
//
//	cri SOCKET
//
// Each line of its input is a call: METHOD REQUEST. METHOD is a method of the runtime or the image service, PullImage
// for example. REQUEST is its request as JSON. cri prints each response as a line of JSON. It ends with its input, or
// with the first error. Each call waits until the services are ready.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// timeout bounds a call.
const timeout = 2 * time.Minute

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: cri SOCKET")
	}
	conn, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	calls := bufio.NewScanner(in)
	calls.Buffer(nil, 1<<20)
	for calls.Scan() {
		name, request, _ := strings.Cut(calls.Text(), " ")
		response, err := call(conn, name, request)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n", response); err != nil {
			return err
		}
	}
	return calls.Err()
}

// call calls a method, and returns its response as JSON.
func call(conn *grpc.ClientConn, name, text string) ([]byte, error) {
	method, err := find(name)
	if err != nil {
		return nil, err
	}
	request, err := message(method.Input())
	if err != nil {
		return nil, err
	}
	response, err := message(method.Output())
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal([]byte(text), request); err != nil {
		return nil, fmt.Errorf("read the request of %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	for {
		err := conn.Invoke(ctx, path, request, response, grpc.WaitForReady(true))
		if err == nil {
			return protojson.Marshal(response)
		}
		if !starting(err) {
			return nil, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// starting reports whether containerd has refused a call because it accepts connections already, but not yet calls.
// It has no code of its own for that.
func starting(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "not initialized yet")
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
