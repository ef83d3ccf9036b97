package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The plugins_registry of the node, in the image's pods.
const registry = "/registration"

type server struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
	failed         chan error
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              s.name,
		Endpoint:          s.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// The container starts again after a failure, so that the kubelet finds a new socket.
func (s *server) NotifyRegistrationStatus(_ context.Context, result *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", result.PluginRegistered, result.Error)
	if !result.PluginRegistered {
		s.failed <- fmt.Errorf("not registered: %s", result.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func registrar(args []string) error {
	flags := flag.NewFlagSet("csi-node-driver-registrar", flag.ExitOnError)
	address := flags.String("csi-address", "", "the driver's socket")
	endpoint := flags.String("kubelet-registration-path", "", "the driver's socket on the node")
	timeout := flags.Duration("timeout", time.Minute, "within which the driver answers")
	flags.String("v", "", "has no effect")
	if err := flags.Parse(args); err != nil {
		return err
	}
	name, err := driverName(*address, *timeout)
	if err != nil {
		return err
	}
	socket := fmt.Sprintf("%s/%s-reg.sock", registry, name)
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	// The listener removes its socket.
	defer listener.Close()
	service := &server{name: name, endpoint: *endpoint, failed: make(chan error, 8)}
	serving := grpc.NewServer()
	registration.RegisterRegistrationServer(serving, service)
	go func() { service.failed <- serving.Serve(listener) }()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	select {
	case <-end:
		return nil
	case err := <-service.failed:
		return err
	}
}

// driverName waits until the driver says its name.
func driverName(address string, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	identity := csi.NewIdentityClient(connection)
	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("the driver at %s: %w", address, err)
	}
	return info.GetName(), nil
}
