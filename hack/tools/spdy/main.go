// Command spdy runs commands and forwards ports over SPDY/3.1, as kubectl does behind an API server, against
// the URL of a kubelet. The tests are its only users.
//
//	spdy exec [-i] [-t] [-size COLUMNSxROWS] URL     streams the process's own streams; exits as the command did
//	spdy forward URL PORT                            prints the local port; ends with its standard input
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
)

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("what is to be done: exec or forward"))
	}
	var err error
	switch verb := os.Args[1]; verb {
	case "exec":
		err = exec(os.Args[2:])
	case "forward":
		err = forward(os.Args[2:])
	default:
		err = fmt.Errorf("%q is neither exec nor forward", verb)
	}
	var exit utilexec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitStatus())
	}
	if err != nil {
		fail(err)
	}
}

// fail ends with a code that no command in the tests has.
func fail(err error) {
	fmt.Fprintln(os.Stderr, "spdy:", err)
	os.Exit(99)
}

// target reads a URL and makes the configuration of a client for it.
func target(text string) (*url.URL, *rest.Config, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return nil, nil, err
	}
	config := &rest.Config{Host: parsed.Scheme + "://" + parsed.Host}
	// The certificate of a kubelet in a test is its own.
	config.Insecure = parsed.Scheme == "https"
	return parsed, config, nil
}

// sizes sends a terminal's size once.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, more := <-s
	if !more {
		return nil
	}
	return &size
}

func exec(args []string) error {
	flags := flag.NewFlagSet("exec", flag.ExitOnError)
	stdin := flags.Bool("i", false, "standard input")
	tty := flags.Bool("t", false, "a terminal")
	size := flags.String("size", "", "the terminal's size: COLUMNSxROWS")
	_ = flags.Parse(args)
	if flags.NArg() != 1 {
		return errors.New("exec wants a URL")
	}
	where, config, err := target(flags.Arg(0))
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, where)
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Stdout: os.Stdout, Tty: *tty}
	if *stdin {
		options.Stdin = os.Stdin
	}
	if !*tty {
		options.Stderr = os.Stderr
	}
	if *size != "" {
		var columns, rows uint16
		if _, err := fmt.Sscanf(*size, "%dx%d", &columns, &rows); err != nil {
			return fmt.Errorf("size %q: %w", *size, err)
		}
		queue := make(sizes, 1)
		queue <- remotecommand.TerminalSize{Width: columns, Height: rows}
		options.TerminalSizeQueue = queue
	}
	return executor.StreamWithContext(context.Background(), options)
}

func forward(args []string) error {
	if len(args) != 2 {
		return errors.New("forward wants a URL and a port")
	}
	where, config, err := target(args[0])
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return err
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, where)
	stop, ready := make(chan struct{}), make(chan struct{})
	ports := []string{"0:" + args[1]}
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, os.Stderr)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return err
	}
	local, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	fmt.Println(local[0].Local)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	return <-ended
}
