package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func hostpathplugin(args []string) error {
	flags := flag.NewFlagSet("hostpathplugin", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "the driver's socket")
	proxy := flags.String("proxy-endpoint", "", "where the suite connects to")
	name := flags.String("drivername", "", "the driver's name")
	attach := flags.Bool("enable-attach", false, "volumes are attached")
	topology := flags.Bool("enable-topology", false, "the node has a topology")
	limit := flags.Int64("attach-limit", 0, "volumes that may be attached to the node")
	expand := flags.Bool("node-expand-required", false, "the node expands volumes")
	for _, ignored := range []string{"nodeid", "statedir", "v"} {
		flags.String(ignored, "", "has no effect")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	path := strings.TrimPrefix(*endpoint, "unix://")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	clients, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	if *proxy != "" {
		servers, err := net.Listen("tcp", strings.TrimPrefix(*proxy, "tcp://"))
		if err != nil {
			return err
		}
		return forward(clients, servers)
	}
	mock := tolerant{service.New(service.Config{
		DisableAttach:         !*attach,
		DriverName:            *name,
		AttachLimit:           *limit,
		NodeExpansionRequired: *expand,
		EnableTopology:        *topology,
	})}
	serving := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	if err := serving.Start(clients, logged); err != nil {
		return err
	}
	defer serving.Stop()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
	return nil
}

// tolerant stages and publishes volumes that are not attached as well, as the image's driver does; the mock wants what its
// attaching returns.
type tolerant struct{ service.Service }

func (t tolerant) NodeStageVolume(ctx context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	request.PublishContext = withDevice(request.GetPublishContext())
	return t.Service.NodeStageVolume(ctx, request)
}

func (t tolerant) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	request.PublishContext = withDevice(request.GetPublishContext())
	return t.Service.NodePublishVolume(ctx, request)
}

func withDevice(published map[string]string) map[string]string {
	if published["device"] != "" {
		return published
	}
	return map[string]string{"device": "mock device"}
}

// logged logs a call in the form that the suite reads.
func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	call := map[string]any{"Method": info.FullMethod, "Request": request, "Response": response, "Error": ""}
	if err != nil {
		call["Error"] = err.Error()
		call["FullError"] = status.Convert(err).Proto()
	}
	text, encodeErr := json.Marshal(call)
	if encodeErr != nil {
		return nil, encodeErr
	}
	log.Printf("gRPCCall: %s", text)
	return response, err
}

// forward gives each client a connection of the suite, which makes some in advance.
func forward(clients, servers net.Listener) error {
	go func() {
		end := make(chan os.Signal, 1)
		signal.Notify(end, syscall.SIGTERM)
		<-end
		os.Exit(0)
	}()
	for {
		client, err := clients.Accept()
		if err != nil {
			return err
		}
		server, err := servers.Accept()
		if err != nil {
			return err
		}
		go join(client, server)
	}
}

// join copies both ways until one side closes.
func join(client, server net.Conn) {
	var once sync.Once
	stop := func() {
		client.Close()
		server.Close()
	}
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			io.Copy(way[0], way[1])
			once.Do(stop)
		}()
	}
}
