CODE=r"""
import time, sys, torch, gradspace as gs
from gradspace.models import *
dev=torch.device(sys.argv[1] if len(sys.argv)>1 else "cpu"); reps=int(sys.argv[2]) if len(sys.argv)>2 else 5
amp=sys.argv[3] if len(sys.argv)>3 else None
prof=len(sys.argv)>4
def sync():
    if dev.type=="cuda": torch.cuda.synchronize()
torch.manual_seed(0)
lengths=torch.randint(8,20,(128,)); tokens=torch.randint(1,8481,(128,20))*(torch.arange(20)<lengths[:,None])
for name,shape,params in (("vse++",(2048,),{}),("vsrn",(36,2048),{}),("vsrn",(36,2048),{"caption_decoder":True}),("vse-infinity",(36,2048),{})):
    m=build_model(name,image_input=ImageInput(shape=shape),text_input=TextInput(vocabulary_size=8481),**params).to(dev)
    x=torch.randn(128,*shape,device=dev); L=gs.RetrievalLoss("triplet-hard"); t=tokens.to(dev)
    def step():
        m.zero_grad()
        with torch.autocast(dev.type, getattr(torch,amp) if amp and amp!="none" else torch.bfloat16, enabled=bool(amp and amp!="none")):
            a,b=m(x,t,lengths)
        l=L(a,b); e=m.extra_loss()
        (l if e is None else l+e).backward()
    step(); sync(); ts=[]
    for _ in range(reps):
        t0=time.perf_counter(); step(); sync(); ts.append(time.perf_counter()-t0)
    ts.sort(); print(name,params,amp,f"params {sum(p.numel() for p in m.parameters())/1e6:.1f}M  median {ts[len(ts)//2]*1e3:.1f} ms min {ts[0]*1e3:.1f}",flush=True)
    if prof:
        from torch.profiler import profile
        with profile() as p: step(); sync()
        print(p.key_averages().table(sort_by="self_cpu_time_total" if dev.type=="cpu" else "self_cuda_time_total",row_limit=14, max_name_column_width=40).split("Self CPU time")[0][:4000])

"""
if __name__=="__main__": exec(CODE)
