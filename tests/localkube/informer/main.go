// Informer keeps client-go's caches of two kinds while it changes their objects, and says whether a cache ever went back in
// time or, whenever the writers pause, held anything but what a list holds. It remembers what it was told of each object: an answer or a
// list that contradicts that is a fault, too. Meanwhile two candidates elect a leader by a Lease. It ends with one line of JSON; exit
// code 1 means that something was wrong.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	writers        = 4
	namesPerWriter = 40
	// How long a cache may need to catch up with a list on two busy cores.
	patience = 30 * time.Second
)

var services = schema.GroupVersionResource{Group: "farwater.dev", Version: "v1alpha1", Resource: "servicedeployments"}

type summary struct {
	Seed     int64    `json:"seed"`
	Writes   int64    `json:"writes"`
	Refused  int64    `json:"refused"`
	Unknown  int64    `json:"unknown"`
	Judged   int64    `json:"judged"`
	Events   int64    `json:"events"`
	Compared int64    `json:"compared"`
	Leaders  int64    `json:"leaders"`
	Faults   []string `json:"faults"`
}

type run struct {
	namespace string
	core      kubernetes.Interface
	dynamic   dynamic.Interface
	caches    []*watched

	writes, refused, unknown, judged, events, compared, leaders atomic.Int64

	// Writers hold it for reading; a comparison takes it whole.
	pause  sync.RWMutex
	mutex  sync.Mutex
	faults []string
}

// One kind: how it is written and listed, and its cache.
type watched struct {
	kind     string
	informer cache.SharedIndexInformer
	// Where objects lie, without their names.
	path   string
	list   func(context.Context) ([]metav1.Object, error)
	create func(context.Context, string) (metav1.Object, error)
	update func(context.Context, string) (metav1.Object, error)
	read   func(context.Context, string) (metav1.Object, error)
	// Whether an update creates what isn't there.
	upserts bool

	mutex sync.Mutex
	seen  map[string]uint64
	// By name; only the writer of a name changes what is known of it, or a comparison, for which writers pause.
	known map[string]belief
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "whom to ask")
	namespace := flag.String("namespace", "default", "where to write; it must exist")
	duration := flag.Duration("duration", 2*time.Minute, "how long to write")
	rate := flag.Int("rate", 100, "writes per second")
	seed := flag.Int64("seed", time.Now().UnixNano(), "of the random choices")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	config.QPS, config.Burst = -1, 0
	r, err := newRun(config, *namespace)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	r.churn(*duration, *rate, *seed)
	result := summary{
		*seed, r.writes.Load(), r.refused.Load(), r.unknown.Load(), r.judged.Load(), r.events.Load(), r.compared.Load(), r.leaders.Load(), r.faults,
	}
	_ = json.NewEncoder(os.Stdout).Encode(result)
	if len(r.faults) > 0 {
		os.Exit(1)
	}
}

func newRun(config *rest.Config, namespace string) (*run, error) {
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r := &run{namespace: namespace, core: core, dynamic: client}
	r.caches = []*watched{r.configMaps(), r.serviceDeployments()}
	return r, nil
}

func (r *run) configMaps() *watched {
	client := r.core.CoreV1().ConfigMaps(r.namespace)
	factory := informers.NewSharedInformerFactoryWithOptions(r.core, 0, informers.WithNamespace(r.namespace))
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"at": time.Now().String()}}
	}
	return &watched{
		kind:     "configmaps",
		informer: factory.Core().V1().ConfigMaps().Informer(),
		path:     "/api/v1/namespaces/" + r.namespace + "/configmaps/",
		list: func(ctx context.Context) ([]metav1.Object, error) {
			list, err := client.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			var objects []metav1.Object
			for i := range list.Items {
				objects = append(objects, &list.Items[i])
			}
			return objects, nil
		},
		create: func(ctx context.Context, name string) (metav1.Object, error) {
			return client.Create(ctx, object(name), metav1.CreateOptions{})
		},
		update: func(ctx context.Context, name string) (metav1.Object, error) {
			return client.Update(ctx, object(name), metav1.UpdateOptions{})
		},
		read: func(ctx context.Context, name string) (metav1.Object, error) {
			return client.Get(ctx, name, metav1.GetOptions{})
		},
		seen:  map[string]uint64{},
		known: map[string]belief{},
	}
}

func (r *run) serviceDeployments() *watched {
	client := r.dynamic.Resource(services).Namespace(r.namespace)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(r.dynamic, 0, r.namespace, nil)
	object := func(name, path string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": services.GroupVersion().String(),
			"kind":       "ServiceDeployment",
			"metadata":   map[string]any{"name": name},
			"spec": map[string]any{
				"clusterRef":      map[string]any{"name": "none"},
				"sourceRef":       map[string]any{"name": "none"},
				"targetNamespace": "none",
				"path":            path,
			},
		}}
	}
	return &watched{
		kind:     "servicedeployments",
		informer: factory.ForResource(services).Informer(),
		path:     "/apis/" + services.GroupVersion().String() + "/namespaces/" + r.namespace + "/" + services.Resource + "/",
		list: func(ctx context.Context) ([]metav1.Object, error) {
			list, err := client.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			var objects []metav1.Object
			for i := range list.Items {
				objects = append(objects, &list.Items[i])
			}
			return objects, nil
		},
		create: func(ctx context.Context, name string) (metav1.Object, error) {
			return client.Create(ctx, object(name, "new"), metav1.CreateOptions{})
		},
		update: func(ctx context.Context, name string) (metav1.Object, error) {
			path := strconv.FormatInt(time.Now().UnixNano(), 36)
			return client.Apply(ctx, name, object(name, path), metav1.ApplyOptions{FieldManager: "churn", Force: true})
		},
		read: func(ctx context.Context, name string) (metav1.Object, error) {
			return client.Get(ctx, name, metav1.GetOptions{})
		},
		upserts: true,
		seen:    map[string]uint64{},
		known:   map[string]belief{},
	}
}

func (r *run) fault(format string, args ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	// The first ones say what is wrong; a thousand more would not.
	if len(r.faults) < 20 {
		r.faults = append(r.faults, fmt.Sprintf(format, args...))
	}
}

func (r *run) churn(duration time.Duration, rate int, seed int64) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for _, w := range r.caches {
		_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { r.see(w, object, false) },
			UpdateFunc: func(_, object any) { r.see(w, object, false) },
			DeleteFunc: func(object any) { r.see(w, object, true) },
		})
		if err != nil {
			r.fault("%s: %v", w.kind, err)
		}
		if err := r.begin(ctx, w); err != nil {
			r.fault("%s: %v", w.kind, err)
		}
		go w.informer.Run(ctx.Done())
	}
	end := time.Now().Add(duration)
	var group sync.WaitGroup
	var leading atomic.Int64
	for _, name := range []string{"one", "two"} {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(end) {
				r.stand(ctx, name, end, &leading)
			}
		}()
	}
	for number := range writers {
		group.Add(1)
		go func() {
			defer group.Done()
			r.write(ctx, number, end, time.Second*writers/time.Duration(rate), rand.New(rand.NewSource(seed+int64(number))))
		}()
	}
	for time.Now().Before(end) {
		time.Sleep(min(5*time.Second, time.Until(end)))
		r.compare(ctx, false)
	}
	group.Wait()
	r.compare(ctx, true)
}

// What is there before the first write.
func (r *run) begin(ctx context.Context, w *watched) error {
	listed, err := w.list(ctx)
	if err != nil {
		return err
	}
	for number := range writers {
		for i := range namesPerWriter {
			w.known[nameOf(number, i)] = belief{state: absent}
		}
	}
	for _, object := range listed {
		if _, ours := w.known[object.GetName()]; ours {
			w.known[object.GetName()] = seen(object).belief()
		}
	}
	return nil
}

func nameOf(writer, number int) string { return fmt.Sprintf("w%d-%d", writer, number) }

// Stands for election once: waits for the lease, leads for a while, and gives it back.
func (r *run) stand(ctx context.Context, name string, end time.Time, leading *atomic.Int64) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: r.namespace, Name: "leader"},
		Client:     r.core.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: name},
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   6 * time.Second,
		RenewDeadline:   4 * time.Second,
		RetryPeriod:     500 * time.Millisecond,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if leading.Add(1) > 1 {
					r.fault("two candidates lead at once")
				}
				r.leaders.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(2 * time.Second):
				}
				// Before the lease is given back, or the other one might be seen beside this one.
				leading.Add(-1)
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
}

// An event of one object never goes back behind an earlier one.
func (r *run) see(w *watched, object any, deleted bool) {
	r.events.Add(1)
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		r.fault("%s: %v", w.kind, err)
		return
	}
	version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	if err != nil {
		r.fault("%s %s: %v", w.kind, accessor.GetName(), err)
		return
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if last := w.seen[accessor.GetName()]; version < last {
		r.fault("%s %s went back from version %d to %d (deleted: %t)", w.kind, accessor.GetName(), last, version, deleted)
	}
	w.seen[accessor.GetName()] = version
}

func (r *run) write(ctx context.Context, number int, end time.Time, every time.Duration, random *rand.Rand) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for time.Now().Before(end) {
		<-ticker.C
		w := r.caches[random.Intn(len(r.caches))]
		name := nameOf(number, random.Intn(namesPerWriter))
		r.pause.RLock()
		before := w.believed(name)
		chosen := choose(chances[before.state], random)
		shown, err := r.perform(ctx, w, chosen, name)
		after, contradiction := before.after(chosen, w.upserts, shown, err)
		w.believe(name, after)
		r.pause.RUnlock()
		if contradiction != "" {
			r.fault("%s %s, at a %s: %s", w.kind, name, chosen, contradiction)
		} else {
			r.count(w.kind+"/"+name, chosen, err)
		}
	}
}

func choose(chances [4]int, random *rand.Rand) operation {
	number := random.Intn(chances[0] + chances[1] + chances[2] + chances[3])
	for i, chance := range chances {
		if number < chance {
			return operation(i)
		}
		number -= chance
	}
	return read
}

func (w *watched) believed(name string) belief {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.known[name]
}

func (w *watched) believe(name string, what belief) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.known[name] = what
}

func (r *run) perform(ctx context.Context, w *watched, chosen operation, name string) (sight, error) {
	if chosen == remove {
		return r.remove(ctx, w.path+name)
	}
	call := map[operation]func(context.Context, string) (metav1.Object, error){create: w.create, update: w.update, read: w.read}[chosen]
	object, err := call(ctx, name)
	if err != nil {
		return sight{}, err
	}
	return seen(object), nil
}

// The typed clients drop the answer, which alone tells whether the object is gone or only leaving.
func (r *run) remove(ctx context.Context, path string) (sight, error) {
	body, err := r.core.CoreV1().RESTClient().Delete().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return sight{}, err
	}
	var answer metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &answer); err != nil {
		return sight{}, apierrors.NewInternalError(err)
	}
	if answer.Kind == "Status" {
		return sight{}, nil
	}
	return seen(&answer), nil
}

// A server that restarts leaves writes of which nobody knows whether they happened. What it refuses without a reason is a fault.
func (r *run) count(key string, chosen operation, err error) {
	switch {
	case err == nil && chosen != read:
		r.writes.Add(1)
	case err == nil:
	case apierrors.IsAlreadyExists(err) && chosen == create, apierrors.IsNotFound(err) && chosen != create:
		r.refused.Add(1)
	case isLost(err), isPutOff(err):
		r.unknown.Add(1)
	default:
		r.fault("%s, at a %s: %v", key, chosen, err)
	}
}

// Nothing is written meanwhile, so each cache must come to hold exactly what a list holds, and a list what is known.
func (r *run) compare(ctx context.Context, isLast bool) {
	r.pause.Lock()
	defer r.pause.Unlock()
	for _, w := range r.caches {
		deadline := time.Now().Add(patience)
		for {
			difference := r.difference(ctx, w, isLast)
			if difference == "" {
				r.compared.Add(1)
				break
			}
			if time.Now().After(deadline) {
				r.fault("%s: %s", w.kind, difference)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// Holds what a list shows against what is known, which needs no patience: lists are of now.
func (r *run) judge(w *watched, listed map[string]metav1.Object) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for name, before := range w.known {
		shown := sight{}
		if object, there := listed[name]; there {
			shown = seen(object)
		}
		if contradiction := before.contradiction(shown); contradiction != "" {
			r.fault("%s %s, in a list: %s", w.kind, name, contradiction)
		}
		if before.state != unsure {
			r.judged.Add(1)
		}
		// What stays absent keeps the uid of the one that was deleted.
		if after := shown.belief(); after.state != absent || before.state != absent {
			w.known[name] = after
		}
	}
}

func (r *run) difference(ctx context.Context, w *watched, isLast bool) string {
	list, err := w.list(ctx)
	if err != nil {
		return err.Error()
	}
	listed := map[string]metav1.Object{}
	for _, object := range list {
		listed[object.GetName()] = object
		if isLast && object.GetDeletionTimestamp() != nil {
			return fmt.Sprintf("%s is still being deleted", object.GetName())
		}
	}
	r.judge(w, listed)
	cached := w.informer.GetStore().List()
	for _, object := range cached {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err.Error()
		}
		there, known := listed[accessor.GetName()]
		if !known {
			return fmt.Sprintf("the cache has %s, the list doesn't", accessor.GetName())
		}
		if there.GetResourceVersion() != accessor.GetResourceVersion() {
			return fmt.Sprintf("the cache has %s at %s, the list at %s", accessor.GetName(), accessor.GetResourceVersion(), there.GetResourceVersion())
		}
	}
	if len(cached) != len(listed) {
		return fmt.Sprintf("the cache has %d objects, the list %d", len(cached), len(listed))
	}
	return ""
}
